'use strict';
const at = id => document.getElementById(id);
const SVG = 'http://www.w3.org/2000/svg';
const MOST = 16, COLOURS = 8, AGAIN = 3000;
const runs = new Map(), rows = new Map();
let order = [], shown = [], last = '', source = null, timer = 0;
let chosen = null;
if (location.hash.startsWith('#show=')) {
  chosen = location.hash.slice(6).split(',').slice(0, MOST).map(key => key.replace(/[^0-9a-f]/g, '').slice(0, 12));
}

// -- the stream ---------------------------------------------------------------------------------------------------

function connect() {
  disconnect();
  const query = new URLSearchParams();
  if (chosen) query.set('show', chosen.join(','));
  if (last) query.set('since', last);
  source = new EventSource('v1/events?' + query);
  source.addEventListener('open', () => tell('Live', 'live'));
  source.addEventListener('error', () => {
    tell('The connection is lost; trying again …', 'lost');
    // The browser tries again by itself, but not after an answer that is no stream.
    if (source.readyState === EventSource.CLOSED) timer = setTimeout(connect, AGAIN);
  });
  source.addEventListener('runs', event => {
    last = event.lastEventId;
    take(JSON.parse(event.data));
  });
  source.addEventListener('curves', event => draw(JSON.parse(event.data)));
}

function disconnect() {
  clearTimeout(timer);
  if (source) source.close();
  source = null;
}

function tell(words, kind) {
  if (at('link').textContent !== words) at('link').textContent = words;
  at('link').className = 'link ' + kind;
}

// -- what there is ------------------------------------------------------------------------------------------------

function take(found) {
  const first = found.whole;
  if (first) {
    runs.clear();
    at('title').textContent = found.title;
    document.title = found.title + ' · PromptFed';
  }
  const news = [];
  for (const one of found.runs) {
    const before = runs.get(one.key);
    if (!first && (!before || before.state !== one.state)) {
      news.push(`${one.name}: ${one.state}` + (one.state === 'finished' && one.mean ? `, mean ${one.mean} %` : ''));
    }
    runs.set(one.key, one);
  }
  if (found.order) order = found.order;
  const there = new Set(order);
  for (const key of runs.keys()) if (!there.has(key)) runs.delete(key);
  if (news.length) at('news').textContent = news.slice(0, 3).join('. ') + '.';
  count(found.unread);
  list();
}

function count(unread) {
  const states = ['running', 'starting', 'stopped', 'finished', 'damaged'];
  const each = states.map(state => [[...runs.values()].filter(one => one.state === state).length, state]);
  const words = each.filter(([number]) => number).map(([number, state]) => `${number} ${state}`);
  if (unread) words.push(`${unread} still to be read`);
  at('counts').textContent = words.join(', ');
  at('none').hidden = runs.size > 0 || unread > 0;
  at('table').hidden = !runs.size;
}

function list() {
  const words = at('find').value.trim().toLowerCase().split(/\s+/);
  const focus = document.activeElement;
  for (const [key, row] of rows) {
    if (!runs.has(key)) {
      row.remove();
      rows.delete(key);
    }
  }
  let next = at('rows').firstElementChild;
  for (const key of order) {
    const one = runs.get(key);
    if (!one) continue;
    if (!rows.has(key)) rows.set(key, made(key));
    const row = rows.get(key);
    fill(row, one);
    const text = `${one.name} ${one.about} ${one.state}`.toLowerCase();
    row.hidden = !words.every(word => text.includes(word));
    if (row === next) next = next.nextElementSibling;
    else at('rows').insertBefore(row, next);
  }
  if (focus !== document.activeElement && focus.isConnected) focus.focus({preventScroll: true});
  mark();
}

function make(kind, name, parent) {
  const node = document.createElement(kind);
  if (name) node.className = name;
  if (parent) parent.append(node);
  return node;
}

function made(key) {
  const row = make('tr');
  row.setAttribute('role', 'row');
  const cell = (name, kind) => {
    const one = make('td', kind || '', row);
    one.setAttribute('role', 'cell');
    if (name) one.dataset.name = name;
    return one;
  };
  const first = cell('', 'text');
  const label = make('label', 'pick', first);
  const box = make('input', '', label);
  box.type = 'checkbox';
  box.addEventListener('change', () => choose(key, box.checked));
  const names = make('span', '', label);
  const name = make('span', 'name', names), about = make('span', 'about', names);
  const note = make('span', 'hint', first);
  const state = make('span', 'state', cell('', 'text'));
  const far = cell('Round');
  const round = make('span', 'at', far), progress = make('progress', '', far), left = make('small', '', far);
  progress.setAttribute('aria-hidden', 'true');
  row.parts = {
    label, box, name, about, note, state, round, progress, left,
    mean: cell('Mean, %'), worst: cell('Worst client, %'), sent: cell('Sent'),
  };
  return row;
}

function fill(row, one) {
  if (row.shows === one) return;
  row.shows = one;
  const parts = row.parts;
  row.className = one.state;
  for (const name of ['name', 'about', 'state', 'mean', 'worst', 'sent']) put(parts[name], one[name]);
  put(parts.round, one.rounds ? `${one.round} of ${one.rounds}` : one.round ? String(one.round) : '–');
  put(parts.left, one.left ? `${one.left} left` : '');
  parts.progress.hidden = !one.rounds || one.state === 'finished';
  parts.progress.max = one.rounds || 1;
  parts.progress.value = one.round;
  parts.note.hidden = !one.note && !one.command;
  parts.note.textContent = one.note;
  if (one.command) {
    parts.note.append('Continue it: ');
    make('code', '', parts.note).textContent = one.command;
  }
}

function put(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

// -- the curves ---------------------------------------------------------------------------------------------------

function draw(found) {
  shown = found.slots;
  at('figure').hidden = !found.wide;
  at('nothing').hidden = Boolean(found.wide);
  at('legend').replaceChildren(...found.keys.map(key => {
    const item = make('li');
    item.append(drawnKey(key), key.text);
    return item;
  }));
  // Drawn by the server as for the report, which escapes every name; the page's policy runs no script in it.
  at('wide').innerHTML = found.wide;
  at('narrow').innerHTML = found.narrow;
  at('caption').textContent = found.caption;
  mark();
}

function drawnKey(key) {
  const svg = document.createElementNS(SVG, 'svg');
  svg.setAttribute('class', 'key');
  svg.setAttribute('viewBox', '0 0 26 12');
  svg.setAttribute('width', 26);
  svg.setAttribute('height', 12);
  svg.setAttribute('aria-hidden', 'true');
  const band = key.kind === 'band';
  const mark = document.createElementNS(SVG, band ? 'rect' : 'path');
  const kind = key.kind === 'line' ? '' : key.kind;
  mark.setAttribute('class', `${band ? 'band one' : `line ${kind}`} s${key.series % COLOURS}`);
  const more = band ? {width: 26, height: 12, rx: 2} : {d: 'M1 6H25'};
  for (const [name, value] of Object.entries(more)) mark.setAttribute(name, value);
  svg.append(mark);
  return svg;
}

// -- which ones ---------------------------------------------------------------------------------------------------

function mark() {
  const slots = chosen || shown;
  for (const [key, row] of rows) {
    const slot = slots.indexOf(key);
    row.parts.box.checked = slot >= 0;
    row.parts.label.className = slot < 0 ? 'pick' : `pick s${slot % COLOURS}`;
  }
  at('follow').setAttribute('aria-pressed', String(!chosen));
}

function choose(key, on) {
  chosen = [...(chosen || shown)];
  if (on) {
    const hole = chosen.indexOf('');
    if (hole >= 0) chosen[hole] = key;
    else if (chosen.length < MOST) chosen.push(key);
    else at('news').textContent = `Up to ${MOST} runs are drawn at a time.`;
  } else {
    chosen = chosen.map(one => (one === key ? '' : one));
    while (chosen.length && !chosen[chosen.length - 1]) chosen.pop();
  }
  again();
}

function again() {
  history.replaceState(null, '', chosen ? '#show=' + chosen.join(',') : location.pathname);
  mark();
  connect();
}

at('follow').addEventListener('click', () => {
  chosen = null;
  again();
});
at('find').addEventListener('input', list);
// A tab that nobody sees holds no connection, of which a browser opens only a few to one server.
document.addEventListener('visibilitychange', () => (document.hidden ? disconnect() : connect()));
connect();
