// The pictures of the first tab: a density on the triangle, samples over it, and the histogram of distances below.
// They are painted here, since a plotting library takes longer for them than the server does for the numbers.
(() => {
    const LOW = -2, HIGH = 2; // log10 densities from white to dark
    const LINES = 2; // contours a power of ten
    const TALL = Math.sqrt(3) / 2; // of a triangle with sides of length one
    const FONT = "system-ui, sans-serif";
    const INK = "#222", SOFT = "#5b5b66", LINE = "#d9d9e0";
    let pictures = [];

    const numbers = (packed) => {
        const bytes = Uint8Array.from(atob(packed.bdata), (c) => c.charCodeAt(0));
        return new Float32Array(bytes.buffer);
    };

    // From white over the colour of the method, three quarters up, to a dark shade of it.
    const palette = (rgb) => {
        const shades = [];
        for (let i = 0; i < 256; i++) {
            const t = i / 255;
            shades.push(rgb.map((c) => t < 0.75 ? 255 + (t / 0.75) * (c - 255) : c * (1 - 0.65 * (t - 0.75) / 0.25)));
        }
        return shades;
    };

    // The density at the resolution of the screen, with a line wherever it passes a contour.
    const density = (picture, width, height) => {
        const z = numbers(picture.density), [rows, columns] = picture.shape, shades = palette(picture.rgb);
        const image = new ImageData(width, height);
        let above = new Float32Array(width);
        for (let j = 0; j < height; j++) {
            const y = Math.min(Math.max((1 - (j + 0.5) / height) * rows - 0.5, 0), rows - 1);
            const r = Math.min(Math.floor(y), rows - 2), fy = y - r;
            const bands = new Float32Array(width);
            for (let i = 0; i < width; i++) {
                const x = Math.min(Math.max((i + 0.5) / width * columns - 0.5, 0), columns - 1);
                const c = Math.min(Math.floor(x), columns - 2), fx = x - c, at = r * columns + c;
                const four = [z[at], z[at + 1], z[at + columns], z[at + columns + 1]];
                const value = (1 - fy) * ((1 - fx) * four[0] + fx * four[1]) + fy * ((1 - fx) * four[2] + fx * four[3]);
                const t = Math.min(Math.max((value - LOW) / (HIGH - LOW), 0), 1);
                bands[i] = Math.min(Math.floor(t * (HIGH - LOW) * LINES), (HIGH - LOW) * LINES - 1);
                // where the density ends there is no contour to be seen, only the steps of the pixels
                const edge = Math.min(...four) > LOW
                    && ((i > 0 && bands[i] !== bands[i - 1]) || (j > 0 && bands[i] !== above[i]));
                const shade = shades[Math.round(255 * t)], k = 4 * (j * width + i);
                for (let d = 0; d < 3; d++) {
                    image.data[k + d] = edge ? 0.55 * shade[d] + 0.45 * shades[255][d] : shade[d];
                }
                image.data[k + 3] = 255;
            }
            above = bands;
        }
        const sheet = new OffscreenCanvas(width, height);
        sheet.getContext("2d").putImageData(image, 0, 0);
        return sheet;
    };

    const triangle = (pen, picture, left, top, side) => {
        const X = (x) => left + side * x, Y = (y) => top + side * (TALL - y);
        pen.beginPath();
        pen.moveTo(X(0), Y(0));
        pen.lineTo(X(1), Y(0));
        pen.lineTo(X(0.5), Y(TALL));
        pen.closePath();
        pen.save();
        pen.clip();
        const ratio = pen.getTransform().a;
        const sheet = density(picture, Math.round(side * ratio), Math.round(side * TALL * ratio));
        pen.drawImage(sheet, X(0), Y(TALL), side, side * TALL);
        pen.restore();
        pen.strokeStyle = INK;
        pen.lineWidth = 1;
        pen.stroke();
        const points = numbers(picture.points);
        pen.fillStyle = "rgba(0, 0, 0, 0.4)";
        for (let i = 0; i < points.length; i += 2) {
            pen.beginPath();
            pen.arc(X(points[i]), Y(points[i + 1]), 1.7, 0, 2 * Math.PI);
            pen.fill();
        }
        pen.fillStyle = INK;
        pen.font = `13px ${FONT}`;
        pen.textAlign = "center";
        pen.fillText("e₁", X(0) - 12, Y(0) + 12);
        pen.fillText("e₂", X(1) + 12, Y(0) + 12);
        pen.fillText("e₃", X(0.5), Y(TALL) - 8);
    };

    const histogram = (pen, picture, left, top, width, height) => {
        const shares = numbers(picture.histogram), most = Math.max(...shares);
        const step = [0.02, 0.05, 0.1, 0.2, 0.5].find((each) => most / each < 3.5);
        const Y = (share) => top + height * (1 - share / Math.max(most, step));
        pen.font = `11px ${FONT}`;
        pen.textAlign = "right";
        pen.strokeStyle = LINE;
        pen.fillStyle = SOFT;
        for (let k = 0; k * step <= most + 1e-9; k++) {
            pen.fillText(`${Math.round(100 * k * step)} %`, left - 5, Y(k * step) + 4);
            pen.beginPath();
            pen.moveTo(left, Y(k * step));
            pen.lineTo(left + width, Y(k * step));
            pen.stroke();
        }
        pen.fillStyle = `rgb(${picture.rgb.join(",")})`;
        shares.forEach((share, i) => {
            const x = left + width * i / shares.length;
            pen.fillRect(x + 0.25, Y(share), width / shares.length - 0.5, Y(0) - Y(share));
        });
        pen.fillStyle = SOFT;
        pen.textAlign = "center";
        [0, 0.2, 0.4, 0.6].forEach((x) => pen.fillText(x, left + width * x * 1.5, Y(0) + 15));
        pen.fillText("distance to the nearest vertex", left + width / 2, Y(0) + 31);
    };

    const paint = (picture) => {
        const canvas = document.getElementById(`picture-${picture.name}`);
        if (!canvas || !canvas.clientWidth) {
            return; // its tab is not open
        }
        const ratio = window.devicePixelRatio || 1, width = canvas.clientWidth, height = canvas.clientHeight;
        canvas.width = Math.round(width * ratio);
        canvas.height = Math.round(height * ratio);
        const pen = canvas.getContext("2d");
        pen.setTransform(ratio, 0, 0, ratio, 0, 0);
        const side = Math.min(width - 48, (height - 150) / TALL);
        triangle(pen, picture, (width - side) / 2, 22, side);
        histogram(pen, picture, 40, 22 + side * TALL + 34, width - 56, height - side * TALL - 96);
    };

    const again = () => pictures.forEach(paint);
    window.addEventListener("resize", again);
    window.dash_clientside = window.dash_clientside || {};
    window.dash_clientside.igr = Object.assign(window.dash_clientside.igr || {}, {
        paint: (given) => {
            pictures = given || [];
            again();
        },
        opened: () => {
            setTimeout(again, 50); // once the tab is on the page
        },
    });
})();
