'use strict';
// Line charts on a canvas: axes with round numbers, log scale, values under the pointer, zoom by dragging.

const COLOURS = ['#0a78c2', '#d55e00', '#009e73', '#b0569a', '#c98a00', '#4aa3d8', '#7a68c8', '#8a8f98'];

// Round ticks that cover low..high.
function ticks(low, high, count) {
  const rough = (high - low) / Math.max(1, count);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map(m => m * power).find(s => s >= rough) || power * 10;
  const out = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9 && out.length < 50; ++i) out.push(i * step);
  return out;
}

function logTicks(low, high) {
  const out = [], from = Math.floor(Math.log10(low)), to = Math.ceil(Math.log10(high));
  const stride = Math.max(1, Math.ceil((to - from) / 6));
  for (let e = from; e <= to; e += stride) {
    for (const m of to - from <= 2 ? [1, 2, 5] : [1]) {
      const value = m * 10 ** e;
      if (value >= low * 0.999 && value <= high * 1.001) out.push(value);
    }
  }
  return out;
}

// A value for people: bytes where the name says so, else up to five digits.
function valueText(value, name = '') {
  if (value === null || value === undefined || !Number.isFinite(value)) return '-';
  if (/bytes(_per_s)?$/.test(name)) {
    const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
    let i = 0, v = value;
    while (Math.abs(v) >= 1024 && i < 4) { v /= 1024; ++i; }
    return `${+v.toPrecision(4)} ${units[i]}`;
  }
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e7)) return value.toExponential(3).replace(/\.?0+e/, 'e').replace('e+', 'e');
  return String(+value.toPrecision(5));
}

function stepText(step) {
  const size = Math.abs(step);
  if (size >= 1e6) return `${+(step / 1e6).toPrecision(4)}M`;
  if (size >= 1e4) return `${+(step / 1e3).toPrecision(4)}k`;
  return String(+step.toPrecision(6));
}

// Exponential smoothing of the values of each column, started without a bias towards zero.
function smoothed(xs, ys, weight) {
  const out = [];
  let sum = 0, norm = 0;
  for (const y of ys) {
    sum = weight * sum + (1 - weight) * y;
    norm = weight * norm + (1 - weight);
    out.push(sum / norm);
  }
  return {x: xs, y: out};
}

class Chart {
  // onZoom(from, to): the part of the steps that was chosen.
  constructor(name, onZoom) {
    this.name = name;
    this.curves = [];
    this.root = element('div', 'chart');
    const head = this.root.appendChild(element('div', 'head'));
    head.appendChild(element('span', 'title', name));
    this.now = head.appendChild(element('span', 'now'));
    this.canvas = this.root.appendChild(element('canvas'));
    this.canvas.setAttribute('role', 'img');
    this.tip = null;
    this.drag = null;
    this.canvas.addEventListener('pointermove', event => this.move(event));
    this.canvas.addEventListener('pointerleave', () => this.leave());
    this.canvas.addEventListener('pointerdown', event => { this.drag = {from: event.offsetX, to: event.offsetX}; });
    this.canvas.addEventListener('pointerup', event => {
      const drag = this.drag;
      this.drag = null;
      if (drag && this.scale && Math.abs(event.offsetX - drag.from) > 8) {
        const ends = [drag.from, event.offsetX].map(x => this.scale.step(x)).sort((a, b) => a - b);
        onZoom(Math.floor(ends[0]), Math.ceil(ends[1]));
      }
      this.draw();
    });
    this.canvas.addEventListener('dblclick', () => onZoom(null, null));
  }

  // curves: [{name, colour, points: {x, y, mx, my, bad}}]; options: {log, smoothing, from, to}
  show(curves, options) {
    this.curves = curves;
    this.options = options;
    this.draw();
    // What is drawn, for tests and for those who cannot see it.
    const last = curves.map(c => c.points.y.length ? `${c.name}: ${valueText(c.points.y.at(-1), this.name)}` : '');
    this.canvas.setAttribute('aria-label', `${this.name}. ${last.filter(text => text).join(', ')}`);
  }

  draw() {
    const width = this.canvas.clientWidth, height = this.canvas.clientHeight;
    if (!width || !height || !this.options) return;
    const ratio = window.devicePixelRatio || 1;
    if (this.canvas.width !== Math.round(width * ratio)) this.canvas.width = Math.round(width * ratio);
    if (this.canvas.height !== Math.round(height * ratio)) this.canvas.height = Math.round(height * ratio);
    const context = this.canvas.getContext('2d');
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width, height);
    const style = getComputedStyle(document.documentElement);
    const colour = name => style.getPropertyValue(name).trim();
    context.font = '11px system-ui, sans-serif';
    const scale = this.scale = this.makeScale(context, width, height);
    if (!scale) {
      context.fillStyle = colour('--soft');
      context.textAlign = 'center';
      const none = this.options.log ? 'nothing above 0 in this range' : 'no finite values in this range';
      context.fillText(this.curves.length ? none : '', width / 2, height / 2);
      return;
    }
    this.drawAxes(context, scale, width, height, colour);
    context.save();
    context.beginPath();
    context.rect(scale.left, scale.top - 2, scale.right - scale.left, scale.bottom - scale.top + 4);
    context.clip();
    for (const curve of this.curves) this.drawCurve(context, scale, curve, colour);
    if (this.drag) {
      context.fillStyle = colour('--accent') + '30';
      context.fillRect(Math.min(this.drag.from, this.drag.to), scale.top, Math.abs(this.drag.to - this.drag.from),
        scale.bottom - scale.top);
    }
    context.restore();
    if (this.pointer !== undefined) this.drawPointer(context, scale, colour);
  }

  makeScale(context, width, height) {
    let x0 = Infinity, x1 = -Infinity, y0 = Infinity, y1 = -Infinity;
    const log = this.options.log;
    for (const {points} of this.curves) {
      for (let i = 0; i < points.x.length; ++i) {
        // An exported file has all steps at hand, also those that are not shown.
        if (this.options.from !== null && (points.x[i] < this.options.from || points.x[i] > this.options.to)) continue;
        x0 = Math.min(x0, points.x[i]);
        x1 = Math.max(x1, points.x[i]);
        if (log && points.y[i] <= 0) continue;
        y0 = Math.min(y0, points.y[i]);
        y1 = Math.max(y1, points.y[i]);
      }
    }
    if (this.options.from !== null) x0 = this.options.from;
    if (this.options.to !== null) x1 = this.options.to;
    if (!(x0 <= x1) || !(y0 <= y1)) return null;
    if (x0 === x1) { x0 -= 0.5; x1 += 0.5; }
    if (log) {
      if (y0 === y1) { y0 /= 1.5; y1 *= 1.5; }
      [y0, y1] = [y0 / (y1 / y0) ** 0.04, y1 * (y1 / y0) ** 0.04];
    } else {
      const spread = (y1 - y0) || Math.abs(y1) || 1;
      y0 -= 0.05 * spread;
      y1 += 0.05 * spread;
    }
    const marks = log ? logTicks(y0, y1) : ticks(y0, y1, 5);
    const labels = marks.map(mark => valueText(+mark.toPrecision(12), this.name));
    const left = 8 + Math.max(18, ...labels.map(label => context.measureText(label).width));
    const top = 8, right = width - 6, bottom = height - 18;
    const f = log ? Math.log : v => v;
    const [a, b] = [f(y0), f(y1)];
    return {
      left, right, top, bottom, marks, labels, x0, x1, y0, y1,
      x: step => left + (step - x0) / (x1 - x0) * (right - left),
      y: value => log && value <= 0 ? bottom + 10 : bottom - (f(value) - a) / (b - a) * (bottom - top),
      step: x => x0 + (Math.min(right, Math.max(left, x)) - left) / (right - left) * (x1 - x0),
    };
  }

  drawAxes(context, scale, width, height, colour) {
    context.strokeStyle = colour('--grid');
    context.fillStyle = colour('--soft');
    context.lineWidth = 1;
    context.textBaseline = 'middle';
    context.textAlign = 'right';
    scale.marks.forEach((mark, i) => {
      const y = Math.round(scale.y(mark)) + 0.5;
      context.beginPath();
      context.moveTo(scale.left, y);
      context.lineTo(scale.right, y);
      context.stroke();
      context.fillText(scale.labels[i], scale.left - 4, y);
    });
    context.textBaseline = 'top';
    context.textAlign = 'center';
    for (const step of ticks(scale.x0, scale.x1, Math.max(2, Math.floor((scale.right - scale.left) / 80)))) {
      if (step !== Math.round(step)) continue;
      const x = Math.round(scale.x(step)) + 0.5;
      context.beginPath();
      context.moveTo(x, scale.top);
      context.lineTo(x, scale.bottom);
      context.stroke();
      const label = stepText(step), half = context.measureText(label).width / 2;
      context.fillText(label, Math.min(width - half - 1, Math.max(scale.left, x)), scale.bottom + 5);
    }
  }

  drawCurve(context, scale, curve, colour) {
    const {points} = curve;
    const line = (xs, ys, alpha, thickness) => {
      context.globalAlpha = alpha;
      context.strokeStyle = curve.colour;
      context.lineWidth = thickness;
      context.lineJoin = 'round';
      context.beginPath();
      for (let i = 0; i < xs.length; ++i) {
        if (i === 0) context.moveTo(scale.x(xs[i]), scale.y(ys[i]));
        else context.lineTo(scale.x(xs[i]), scale.y(ys[i]));
      }
      context.stroke();
      context.globalAlpha = 1;
    };
    const weight = this.options.smoothing;
    line(points.x, points.y, weight > 0 ? 0.25 : 1, 1.4);
    if (weight > 0) {
      const smooth = smoothed(points.mx || points.x, points.my || points.y, weight);
      line(smooth.x, smooth.y, 1, 1.8);
    }
    // Few points are seen as such.
    if (points.x.length <= 40) {
      context.fillStyle = curve.colour;
      for (let i = 0; i < points.x.length; ++i) {
        context.beginPath();
        context.arc(scale.x(points.x[i]), scale.y(points.y[i]), 2.2, 0, 7);
        context.fill();
      }
    }
    context.fillStyle = colour('--bad');
    for (const step of points.bad || []) context.fillRect(scale.x(step) - 1, scale.bottom - 4, 2, 4);
  }

  // The point of a curve that is nearest to a step.
  static nearest(points, step) {
    const xs = points.x;
    if (!xs.length) return -1;
    let low = 0, high = xs.length - 1;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (xs[middle] < step) low = middle + 1;
      else high = middle;
    }
    return low > 0 && step - xs[low - 1] < xs[low] - step ? low - 1 : low;
  }

  drawPointer(context, scale, colour) {
    const x = Math.min(scale.right, Math.max(scale.left, this.pointer));
    context.strokeStyle = colour('--soft');
    context.lineWidth = 1;
    context.beginPath();
    context.moveTo(x, scale.top);
    context.lineTo(x, scale.bottom);
    context.stroke();
    for (const curve of this.curves) {
      const i = Chart.nearest(curve.points, scale.step(x));
      if (i < 0) continue;
      context.fillStyle = curve.colour;
      context.beginPath();
      context.arc(scale.x(curve.points.x[i]), scale.y(curve.points.y[i]), 3.5, 0, 7);
      context.fill();
    }
  }

  move(event) {
    if (!this.scale) return;
    this.pointer = event.offsetX;
    if (this.drag) this.drag.to = event.offsetX;
    this.draw();
    if (!this.tip) this.tip = this.root.appendChild(element('div', 'tip'));
    this.tip.replaceChildren();
    const step = this.scale.step(this.pointer);
    for (const curve of this.curves) {
      const i = Chart.nearest(curve.points, step);
      if (i < 0) continue;
      const row = this.tip.appendChild(element('div', 'row'));
      const swatch = row.appendChild(element('span', 'swatch'));
      swatch.style.background = curve.colour;
      row.appendChild(element('span', '', `${valueText(curve.points.y[i], this.name)} at ${curve.points.x[i]}`));
      if (this.curves.length > 1) row.appendChild(element('span', 'name', curve.name));
    }
    const left = Math.min(event.offsetX + 20, this.root.clientWidth - this.tip.offsetWidth - 4);
    this.tip.style.left = `${Math.max(4, left)}px`;
    this.tip.style.top = `${this.canvas.offsetTop + 12}px`;
  }

  leave() {
    this.pointer = undefined;
    this.drag = null;
    if (this.tip) this.tip.remove();
    this.tip = null;
    this.draw();
  }
}

function element(tag, className = '', text = '') {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text) made.textContent = text;
  return made;
}
