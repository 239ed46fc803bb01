
// The page: which runs are shown, what is asked of the server, and where it stands. Names and texts of runs only ever
// become text nodes.

const MOST_RUNS = 8, MOST_CHARTS = 60;
const byId = id => document.getElementById(id);

const state = {
  runs: [], shown: new Map(), charts: new Map(), visible: new Set(), groups: '', from: null, to: null, log: false,
  smoothing: 0, metricFilter: '', runFilter: '', chosen: false,
};

// --- where the data are from: the server, or the file itself ------------------------------------------------------

class Server {
  constructor() { this.token = new URLSearchParams(location.search).get('token'); }

  async get(path, parameters = {}) {
    const query = new URLSearchParams(parameters).toString();
    const response = await fetch(path + (query ? `?${query}` : ''), this.token ? {headers: {'X-Token': this.token}} : {});
    if (response.status === 204) return null;
    if (!response.ok) {
      const error = new Error((await response.text()).trim());
      error.status = response.status;
      throw error;
    }
    return response.json();
  }

  runs() { return this.get('api/runs'); }
  details(id) { return this.get('api/details', {run: id}); }
  metrics(id, asked) { return this.get('api/metrics', {run: id, ...asked}); }
}

class ExportedFile {
  constructor(text) { this.data = JSON.parse(text); }

  async runs() { return this.data; }
  async details(id) { return this.data.runs.find(run => run.id === id).details; }
  async metrics(id, asked) { return asked.have ? null : this.data.runs.find(run => run.id === id).metrics; }
}

const exported = byId('exported');
const source = exported ? new ExportedFile(exported.textContent) : new Server();

// --- runs ---------------------------------------------------------------------------------------------------------

function ageText(seconds) {
  if (seconds < 90) return `${Math.max(0, Math.round(seconds))} s ago`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min ago`;
  if (seconds < 172800) return `${Math.round(seconds / 3600)} h ago`;
  return `${Math.round(seconds / 86400)} days ago`;
}

function freeColour() {
  const used = new Set([...state.shown.values()].map(run => run.colour));
  return COLOURS.find(colour => !used.has(colour)) || COLOURS[0];
}

function showRun(id) {
  const run = state.runs.find(one => one.id === id);
  if (!run || state.shown.has(id) || state.shown.size >= MOST_RUNS) return;
  state.shown.set(id, {id, name: run.name, colour: freeColour(), points: new Map(), index: new Map(), asked: '',
    have: '', head: null, details: null});
}

function drawRuns() {
  const list = byId('run-list'), filter = state.runFilter.toLowerCase();
  const key = JSON.stringify([filter, state.runs.map(run => [run.id, run.age]), [...state.shown.keys()]]);
  if (list.dataset.key === key) return;
  list.dataset.key = key;
  const rows = [];
  for (const run of state.runs) {
    if (filter && !run.name.toLowerCase().includes(filter)) continue;
    const row = element('label', 'run');
    const box = row.appendChild(element('input'));
    box.type = 'checkbox';
    box.checked = state.shown.has(run.id);
    box.disabled = !box.checked && state.shown.size >= MOST_RUNS;
    box.addEventListener('change', () => {
      if (box.checked) showRun(run.id);
      else state.shown.delete(run.id);
      list.dataset.key = '';
      drawRuns();
      draw();
      wake();
    });
    const swatch = row.appendChild(element('span', 'swatch'));
    if (box.checked) swatch.style.background = state.shown.get(run.id).colour;
    row.appendChild(element('span', 'name', run.name));
    row.appendChild(element('span', run.live ? 'age live' : 'age', run.age));
    rows.push(row);
  }
  list.replaceChildren(...rows);
  byId('run-count').textContent = `(${state.runs.length}${state.cut ? ', more are not listed' : ''})`;
}

async function readRuns() {
  const found = await source.runs();
  byId('folder').textContent = found.folder;
  state.cut = found.cut;
  state.runs = found.runs.map(run => {
    const age = found.now - run.modified;
    return {id: run.id, name: run.name, modified: run.modified, age: ageText(age), live: !exported && age < 120};
  });
  for (const id of state.shown.keys()) if (!state.runs.some(run => run.id === id)) state.shown.delete(id);
  // At first the run that was written last; of a file all.
  if (!state.chosen && state.runs.length) {
    state.chosen = true;
    const newest = [...state.runs].sort((a, b) => b.modified - a.modified);
    for (const run of exported ? state.runs : newest.slice(0, 1)) showRun(run.id);
  }
  drawRuns();
}

// --- metrics ------------------------------------------------------------------------------------------------------

// Returns whether the server has more of this run to read at once.
async function readMetrics(run) {
  const wanted = [...state.visible].filter(name => run.index.has(name));
  const asked = {columns: 700};
  if (wanted.length) {
    asked.keys = wanted.slice(0, 400).map(name => run.index.get(name)).join(',');
    asked.generation = run.head.generation;
  }
  if (state.from !== null) Object.assign(asked, {from: state.from, to: state.to});
  const question = JSON.stringify(asked);
  if (question === run.asked) asked.have = run.have;
  const head = await source.metrics(run.id, asked);
  if (!head) return false;
  const keysBefore = run.index.size;
  if (run.head && run.head.generation !== head.generation) run.points.clear();
  run.index = new Map(head.keys.map(([name], i) => [name, i]));
  run.numbers = new Map(head.keys.map(([name, count, bad, latest]) => [name, {count, bad, latest}]));
  for (const [index, points] of Object.entries(head.points)) run.points.set(head.keys[index][0], points);
  run.head = head;
  run.asked = question;
  run.have = head.version;
  return !head.done || run.index.size !== keysBefore;
}

const PHASES = /^perf\/(merge|prefill|decode|encode|diversity|train|forward|backward|optimizer)_ms$/;
const GROUPS = [
  ['Loss and accuracy', /^train\/(.*loss$|.*entropy$|.*accuracy$|reward|kl$|diversity$)/],
  ['Evaluations', /^eval(_raw)?\//],
  ['Rates and gradients', /^train\/(lr|grad_norm|update_ratio|skipped_steps|loss_scale|clip)/],
  ['Experts', /^train\/moe\//],
  ['8-bit scales', /^train\/fp8\//],
  ['Training', /^train\//],
  ['Phases', key => /^perf\/phase\//.test(key) || PHASES.test(key)],
  ['Memory', /^perf\/memory/],
  ['GPU health', /^perf\/gpu\//],
  ['Throughput', /^perf\//],
  ['Other', /^/],
];
const ORDER = ['Loss and accuracy', 'Evaluations', 'Rates and gradients', 'Training', 'Experts', '8-bit scales', 'Throughput',
  'Phases', 'Memory', 'GPU health', 'Other'];

function groupOf(key) {
  return GROUPS.find(([, rule]) => typeof rule === 'function' ? rule(key) : rule.test(key))[0];
}

// An element of a list: its values are shown as bars, not as a chart for each.
const listOf = key => /^(.*)\/\d+$/.exec(key)?.[1];

function keysShown() {
  const keys = new Set();
  for (const run of state.shown.values()) {
    for (const [name, about] of run.numbers || []) {
      if (about.count + about.bad > 0 && !(listOf(name) && Number(/\d+$/.exec(name)[0]) >= 4)) keys.add(name);
    }
  }
  const filter = state.metricFilter.toLowerCase();
  return [...keys].filter(key => key.toLowerCase().includes(filter));
}

const observer = new IntersectionObserver(entries => {
  let more = false;
  for (const entry of entries) {
    const name = entry.target.chartName;
    if (entry.isIntersecting) more = more || !state.visible.has(name);
    if (entry.isIntersecting) state.visible.add(name);
    else state.visible.delete(name);
  }
  draw();
  if (more) wake();
}, {rootMargin: '300px'});

function zoom(from, to) {
  [state.from, state.to] = [from, to];
  byId('whole-range').hidden = from === null;
  draw();
  wake();
}

function layOutGroups() {
  const keys = keysShown();
  const layout = JSON.stringify(keys);
  if (layout === state.groups) return;
  state.groups = layout;
  observer.disconnect();
  state.visible.clear();
  const closed = new Set([...document.querySelectorAll('details.group:not([open])')].map(group => group.groupName));
  const boxes = [];
  for (const name of ORDER) {
    const members = keys.filter(key => groupOf(key) === name);
    if (!members.length) continue;
    const box = element('details', 'group');
    box.groupName = name;
    box.open = !closed.has(name);
    const summary = box.appendChild(element('summary', '', name));
    summary.appendChild(element('span', 'count', ` ${members.length}`));
    const charts = box.appendChild(element('div', 'charts'));
    for (const key of members.slice(0, MOST_CHARTS)) {
      if (!state.charts.has(key)) {
        const chart = new Chart(key, zoom);
        chart.root.chartName = key;
        state.charts.set(key, chart);
      }
      charts.appendChild(state.charts.get(key).root);
      observer.observe(state.charts.get(key).root);
    }
    if (members.length > MOST_CHARTS) {
      box.appendChild(element('p', 'empty', `${members.length - MOST_CHARTS} more: filter the metrics to see them`));
    }
    boxes.push(box);
  }
  byId('groups').replaceChildren(...boxes);
  for (const key of state.charts.keys()) if (!keys.includes(key)) state.charts.delete(key);
}

// Count, ends and extremes of what a chart draws, and all of it where it is little.
function digest(curve) {
  const {x, y} = curve.points;
  const out = {run: curve.name, n: x.length};
  if (x.length) {
    Object.assign(out, {first: [x[0], y[0]], last: [x.at(-1), y.at(-1)], min: y.reduce((a, b) => Math.min(a, b)),
      max: y.reduce((a, b) => Math.max(a, b))});
  }
  if (x.length <= 60) Object.assign(out, {x, y});
  if (curve.points.bad) out.bad = curve.points.bad;
  return out;
}

function drawCharts() {
  for (const name of state.visible) {
    const chart = state.charts.get(name);
    if (!chart) continue;
    const curves = [], latest = [];
    for (const run of state.shown.values()) {
      const points = run.points.get(name);
      if (points) curves.push({name: run.name, colour: run.colour, points});
      const about = run.numbers?.get(name);
      if (about) latest.push(valueText(about.latest, name));
    }
    chart.show(curves, state);
    chart.root.dataset.curves = JSON.stringify(curves.map(digest));
    chart.now.textContent = latest.slice(0, 3).join('  ');
  }
}

// --- tables and texts ---------------------------------------------------------------------------------------------

function table(head, rows) {
  const made = element('table');
  const line = made.appendChild(element('thead')).appendChild(element('tr'));
  for (const text of head) line.appendChild(element('th', '', text));
  const body = made.appendChild(element('tbody'));
  for (const row of rows) {
    const tr = body.appendChild(element('tr'));
    for (const cell of row) {
      const td = tr.appendChild(element('td'));
      if (cell instanceof Node) td.appendChild(cell);
      else td.textContent = cell;
    }
  }
  return made;
}

function named(run) {
  const span = element('span');
  const swatch = span.appendChild(element('span', 'swatch'));
  swatch.style.cssText = `display:inline-block;margin-right:.4rem;background:${run.colour}`;
  span.appendChild(document.createTextNode(run.name));
  return span;
}

const latestOf = (run, ...keys) => keys.map(key => run.numbers?.get(key)?.latest).find(value => value !== undefined);

function drawSummary() {
  const rows = [...state.shown.values()].map(run => {
    const head = run.head;
    if (!head) return [named(run), '', '', '', '', 'reading'];
    const notes = [];
    if (!head.done) notes.push(`read ${Math.floor(100 * head.bytes_read / Math.max(1, head.bytes))} %`);
    if (head.damaged) notes.push(`${head.damaged} damaged ${head.damaged === 1 ? 'line' : 'lines'} skipped`);
    if (head.left_out) notes.push(`${head.left_out} values left out`);
    const bad = head.keys.reduce((sum, [, , count]) => sum + count, 0);
    if (bad) notes.push(`${bad} values not finite`);
    return [named(run), String(head.last), valueText(latestOf(run, 'train/loss')),
      valueText(latestOf(run, 'eval/exact_accuracy', 'eval/accuracy', 'eval/loss')),
      valueText(latestOf(run, 'perf/step_ms')), notes.join(', ')];
  });
  const box = byId('summary');
  if (!rows.length) {
    box.replaceChildren(element('p', 'empty', state.runs.length ? 'Choose a run.' :
      'No run yet. A run appears here once its folder has a file metrics.jsonl.'));
    return;
  }
  box.replaceChildren(table(['run', 'step', 'loss', 'evaluation', 'ms per step', ''], rows));
}

function bars(title, rows, key) {
  const card = element('div', 'card');
  card.appendChild(title);
  const most = Math.max(...rows.map(([, value]) => Math.abs(value)), Number.MIN_VALUE);
  for (const [label, value] of rows) {
    const row = card.appendChild(element('div', 'bar'));
    row.appendChild(element('span', 'label', label));
    const bar = row.appendChild(element('progress'));
    bar.max = 1;
    bar.value = Math.abs(value) / most;
    row.appendChild(element('span', 'value', valueText(value, key)));
  }
  return card;
}

function drawParts() {
  const cards = [];
  for (const run of state.shown.values()) {
    const phases = [], lists = new Map();
    for (const [name, about] of run.numbers || []) {
      if (about.latest === null) continue;
      if (groupOf(name) === 'Phases') phases.push([name.replace(/^perf\/(phase\/)?/, '').replace(/_ms$/, ''), about.latest]);
      const list = listOf(name);
      if (list !== undefined) {
        if (!lists.has(list)) lists.set(list, []);
        lists.get(list).push([name.slice(list.length + 1), about.latest]);
      }
    }
    const title = text => {
      const head = element('h3', '', `${text} - `);
      head.appendChild(named(run));
      return head;
    };
    if (phases.length) cards.push(bars(title('milliseconds by phase, last line'), phases, 'ms'));
    for (const [list, rows] of [...lists].slice(0, 20)) cards.push(bars(title(`${list}, last line`), rows, list));
  }
  section('parts', 'Phases and lists', cards);
}

function section(id, title, cards) {
  const box = byId(id);
  if (!cards.length) box.replaceChildren();
  else box.replaceChildren(element('h2', '', title), ...cards);
}

// A puzzle as rows, where it is a square of symbols or a list of rows.
function gridText(value) {
  if (Array.isArray(value) && value.every(Array.isArray)) return value.map(row => row.join(' ')).join('\n');
  const symbols = Array.isArray(value) ? value.map(String) : [...String(value)];
  const side = Math.round(Math.sqrt(symbols.length));
  if (side >= 4 && side * side === symbols.length && !symbols.includes('\n')) {
    const rows = [];
    for (let i = 0; i < side; ++i) rows.push(symbols.slice(i * side, (i + 1) * side).join(' '));
    return rows.join('\n');
  }
  return Array.isArray(value) ? symbols.join(' ') : String(value);
}

const asText = value => typeof value === 'string' ? value : JSON.stringify(value);

function answerOf(item) {
  const box = element('div', 'answer');
  if (item === null || typeof item !== 'object' || Array.isArray(item)) {
    box.appendChild(element('pre', '', asText(item)));
    return box;
  }
  if ('question' in item && 'answer' in item) {
    const grids = box.appendChild(element('div', 'grids'));
    grids.appendChild(element('pre', '', gridText(item.question)));
    grids.appendChild(element('pre', item.valid === false ? 'wrong' : item.valid ? 'right' : '', gridText(item.answer)));
    const facts = Object.entries(item).filter(([key]) => key !== 'question' && key !== 'answer');
    grids.appendChild(element('pre', '', facts.map(([key, value]) => `${key} ${asText(value)}`).join('\n')));
    return box;
  }
  const prompt = item.prompt ?? item.messages;
  if (prompt !== undefined) box.appendChild(element('pre', '', asText(prompt)));
  if (Array.isArray(item.sampled)) {
    const list = box.appendChild(element('ul'));
    const texts = item.greedy !== undefined ? [item.greedy, ...item.sampled] : item.sampled;
    const shift = texts.length - item.sampled.length;
    texts.forEach((text, i) => {
      const right = Array.isArray(item.right) ? item.right[i - shift] : undefined;
      list.appendChild(element('li', right === true || right > 0 ? 'right' : ''))
        .appendChild(element('pre', '', `${i < shift ? 'greedy: ' : ''}${asText(text)}${right === true || right > 0 ? '  (right)' : ''}`));
    });
    return box;
  }
  const rest = Object.entries(item).filter(([key]) => key !== 'prompt' && key !== 'messages' && key !== 'tokens');
  for (const [key, value] of rest) box.appendChild(element('pre', '', `${key}: ${asText(value)}`));
  return box;
}

function flat(value, path, out) {
  if (value !== null && typeof value === 'object' && !Array.isArray(value)) {
    for (const [key, inner] of Object.entries(value)) flat(inner, path ? `${path}.${key}` : key, out);
  } else {
    out.set(path, asText(value));
  }
  return out;
}

function parsedConfig(run) {
  try { return flat(JSON.parse(run.details.config), '', new Map()); } catch { return new Map(); }
}

function settingsCards(all) {
  const runs = all.filter(run => run.details.config);
  const parsed = runs.map(parsedConfig);
  const cards = [];
  if (runs.length > 1) {
    const keys = [...new Set(parsed.flatMap(config => [...config.keys()]))];
    const different = keys.filter(key => new Set(parsed.map(config => config.get(key))).size > 1);
    const card = element('div', 'card');
    card.appendChild(element('h3', '', different.length ? 'settings that differ' : 'no settings differ'));
    if (different.length) {
      card.appendChild(table(['key', ...runs.map(run => run.name)],
        different.map(key => [key, ...parsed.map(config => config.get(key) ?? '-')])));
    }
    cards.push(card);
  }
  for (const run of runs) {
    const card = element('details', 'card');
    const summary = card.appendChild(element('summary', '', 'config.json and environment.json - '));
    summary.appendChild(named(run));
    card.appendChild(element('pre', '', `${run.details.config}\n${run.details.environment}`));
    cards.push(card);
  }
  return cards;
}

function drawDetails() {
  const runs = [...state.shown.values()].filter(run => run.details);
  const stamp = JSON.stringify(runs.map(run => [run.name, run.colour, run.details, run.head?.texts]));
  if (state.detailsDrawn === stamp) return;
  state.detailsDrawn = stamp;
  const answers = [], logs = [];
  for (const run of runs) {
    const card = text => {
      const made = element('div', 'card');
      const head = made.appendChild(element('h3', '', `${text} - `));
      head.appendChild(named(run));
      return made;
    };
    for (const [key, texts] of Object.entries(run.head?.texts || {})) {
      const made = card(key);
      for (const [step, text] of [...texts].reverse()) {
        const box = made.appendChild(element('div', 'answer'));
        box.appendChild(element('pre', '', `step ${step}: ${text}`));
      }
      answers.push(made);
    }
    for (const file of run.details.answers) {
      const made = card(file.file);
      if (file.problem) made.appendChild(element('p', 'wrong', file.problem));
      for (const item of file.items || []) made.appendChild(answerOf(item));
      answers.push(made);
    }
    if (run.details.log) {
      const made = card('end of log/rank_0.log');
      made.appendChild(element('pre', 'log', run.details.log));
      logs.push(made);
    }
  }
  section('answers', 'Solved puzzles and completions', answers);
  section('settings', 'Settings', settingsCards(runs));
  section('logs', 'Log', logs);
  for (const log of document.querySelectorAll('pre.log')) log.scrollTop = log.scrollHeight;
}

function draw() {
  layOutGroups();
  drawCharts();
  drawSummary();
  drawParts();
  drawDetails();
}

// --- the loop -----------------------------------------------------------------------------------------------------

let timer = null, busy = false, again = false, detailsRead = 0;

// Asks at once, also where an answer is on its way.
function wake() {
  again = true;
  clearTimeout(timer);
  if (!busy) refresh();
}

async function refresh() {
  busy = true;
  again = false;
  let more = false;
  const status = byId('state');
  try {
    await readRuns();
    const shown = [...state.shown.values()];
    for (const unfinished of await Promise.all(shown.map(readMetrics))) more = more || unfinished;
    draw();
    if (Date.now() - detailsRead > 5000 || shown.some(run => !run.details)) {
      await Promise.all(shown.map(async run => { run.details = await source.details(run.id); }));
      detailsRead = Date.now();
    }
    status.textContent = exported ? `exported ${new Date(source.data.now * 1000).toLocaleString()}` : 'live';
    status.className = '';
  } catch (error) {
    status.textContent = error.status ? error.message : 'no connection to hrm_train dashboard; trying again';
    status.className = 'problem';
  }
  draw();
  document.body.dataset.updates = Number(document.body.dataset.updates || 0) + 1;
  busy = false;
  if (again || more) timer = setTimeout(refresh, 20);
  else if (!exported) timer = setTimeout(refresh, 2000);
}

byId('run-filter').addEventListener('input', event => { state.runFilter = event.target.value; drawRuns(); });
byId('metric-filter').addEventListener('input', event => { state.metricFilter = event.target.value; draw(); });
byId('smoothing').addEventListener('input', event => { state.smoothing = Number(event.target.value); draw(); });
byId('log-scale').addEventListener('change', event => { state.log = event.target.checked; draw(); });
byId('whole-range').addEventListener('click', () => zoom(null, null));
window.addEventListener('resize', drawCharts);
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', drawCharts);
if (window.innerWidth <= 760) byId('runs-box').open = false;
refresh();
