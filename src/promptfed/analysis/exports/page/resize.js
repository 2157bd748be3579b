"use strict";
// Pillow's bicubic filter for bytes, rounding included: photographs are scaled as in training, to the last bit.

const BITS = 22; // of a weight's fraction

function cubic(x) {
  const a = -0.5;
  x = Math.abs(x);
  if (x < 1) return ((a + 2) * x - (a + 3)) * x * x + 1;
  if (x < 2) return (((x - 5) * x + 8) * x - 4) * a;
  return 0;
}

// For every output pixel: the first input pixel and the whole-number weights from there on.
function weights(from, to) {
  const scale = from / to;
  const wide = Math.max(scale, 1);
  const support = 2 * wide;
  return Array.from({ length: to }, (_, out) => {
    const center = (out + 0.5) * scale;
    const first = Math.max(Math.trunc(center - support + 0.5), 0);
    const last = Math.min(Math.trunc(center + support + 0.5), from);
    const each = [];
    for (let x = first; x < last; x++) each.push(cubic((x - center + 0.5) / wide));
    const sum = each.reduce((one, other) => one + other, 0);
    return { first, each: each.map(w => Math.trunc((w / sum) * 2 ** BITS + (w < 0 ? -0.5 : 0.5))) };
  });
}

// RGB bytes [rows, columns, 3] with one side scaled; `down` for the rows, else the columns.
function scaled(pixels, rows, columns, to, down) {
  const [height, width] = down ? [to, columns] : [rows, to];
  const made = new Uint8ClampedArray(height * width * 3);
  const taken = weights(down ? rows : columns, to);
  const step = down ? columns * 3 : 3;
  for (let y = 0; y < height; y++) {
    for (let x = 0; x < width; x++) {
      const { first, each } = taken[down ? y : x];
      const start = down ? (first * columns + x) * 3 : (y * columns + first) * 3;
      for (let c = 0; c < 3; c++) {
        let sum = 2 ** (BITS - 1);
        for (let n = 0; n < each.length; n++) sum += pixels[start + n * step + c] * each[n];
        made[(y * width + x) * 3 + c] = Math.floor(sum / 2 ** BITS);
      }
    }
  }
  return made;
}

// RGB bytes [rows, columns, 3] -> RGB bytes [height, width, 3]; columns first, as Pillow does it.
function resize(pixels, rows, columns, height, width) {
  const across = columns === width ? pixels : scaled(pixels, rows, columns, width, false);
  return rows === height ? across : scaled(across, rows, width, height, true);
}
