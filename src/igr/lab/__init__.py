"""The laboratory: bias, variance and cost of gradient estimators on problems whose gradient is known exactly."""
