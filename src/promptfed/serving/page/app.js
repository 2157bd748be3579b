'use strict';
const at = id => document.getElementById(id);
const TOP = 5;
let turn = 0, listed = null;

function say(text, wrong) {
  at('status').textContent = text;
  at('status').classList.toggle('wrong', Boolean(wrong));
}

async function ask(path, body) {
  const token = at('token').value.trim();
  const headers = token ? {Authorization: 'Bearer ' + token} : {};
  if (body) headers['Content-Type'] = 'application/octet-stream';
  const answer = await fetch(path, {method: body ? 'POST' : 'GET', body, headers});
  const found = await answer.json().catch(() => ({error: 'The server did not answer.'}));
  if (answer.ok) return found;
  if (answer.status === 401) at('token-row').hidden = false;
  throw new Error(found.error);
}

async function list() {
  try {
    const found = await ask('v1/clients');
    at('clients').replaceChildren(...found.clients.map(one => {
      const option = document.createElement('option');
      option.value = one.client;
      if (one.name) option.label = one.name;
      return option;
    }));
    if (!at('client').value && found.clients.length) at('client').value = found.clients[0].client;
    at('client-hint').textContent = found.total === 1 ? '1 client' : found.total + ' clients';
    say('');
  } catch (error) {
    say(error.message, true);
  }
}

function percent(share) {
  return (100 * share).toFixed(1) + ' %';
}

function bars(classes) {
  at('bars').replaceChildren(...classes.map(one => {
    const row = document.createElement('tr');
    const name = document.createElement('th');
    name.scope = 'row';
    name.textContent = one.class;
    const cell = document.createElement('td');
    const number = document.createElement('span');
    number.textContent = percent(one.probability);
    const bar = document.createElement('progress');
    bar.max = 1;
    bar.value = one.probability;
    bar.setAttribute('aria-hidden', 'true');
    cell.append(number, bar);
    row.append(name, cell);
    return row;
  }));
}

function place(row, column, cells) {
  const third = number => Math.min(2, Math.floor(3 * (number + 0.5) / cells));
  const words = [['top left', 'top', 'top right'], ['left', 'middle', 'right'],
    ['bottom left', 'bottom', 'bottom right']];
  return words[third(row)][third(column)];
}

function look(found) {
  const cells = found.grid.length, canvas = at('heat'), most = Math.max(...found.grid.flat());
  canvas.width = canvas.height = 20 * cells;
  const pen = canvas.getContext('2d');
  found.grid.forEach((line, row) => line.forEach((lost, column) => {
    pen.fillStyle = `rgba(255, 80, 0, ${most > 0 ? 0.75 * Math.max(0, lost) / most : 0})`;
    pen.fillRect(20 * column, 20 * row, 20, 20);
  }));
  const peak = found.grid.flat().indexOf(most);
  const spot = place(Math.floor(peak / cells), peak % cells, cells);
  at('where').textContent = most < 0.001
    ? 'No single part matters: covering any of them changes nothing.'
    : `It looked most at the part at the ${spot}: without it, “${found.class}” has `
      + `${(100 * most).toFixed(1)} points less.`;
}

async function answer(file) {
  if (!file) return;
  const mine = ++turn;
  say('Looking …');
  await listed;
  const whose = at('client').value.trim();
  const query = '?' + (whose ? 'client=' + encodeURIComponent(whose) + '&' : '');
  at('where').textContent = '';
  try {
    const found = await ask('v1/predict' + query + 'top=' + TOP, file);
    if (mine !== turn) return;
    const classes = found.images[0].classes;
    URL.revokeObjectURL(at('shown').src);
    at('shown').src = URL.createObjectURL(file);
    at('heat').width = 1;
    at('answer').textContent = `${classes[0].class}, ${percent(classes[0].probability)} sure`;
    bars(classes);
    at('result').hidden = false;
    say('Client ' + found.client + ' has answered.');
    at('answer').focus();
    const map = await ask('v1/explain' + query, file);
    if (mine === turn) look(map);
  } catch (error) {
    if (mine === turn) say(error.message, true);
  }
}

for (const id of ['picture', 'camera']) {
  at(id).addEventListener('change', event => answer(event.target.files[0]));
}
at('ask').addEventListener('submit', event => event.preventDefault());
at('token').addEventListener('change', () => { listed = list(); });
at('client').addEventListener('change', () => answer(at('picture').files[0] || at('camera').files[0]));
at('toggle').addEventListener('change', event => at('heat').classList.toggle('off', !event.target.checked));
for (const kind of ['dragover', 'dragleave', 'drop']) {
  at('drop').addEventListener(kind, event => {
    event.preventDefault();
    at('drop').classList.toggle('over', kind === 'dragover');
    if (kind === 'drop') answer(event.dataTransfer.files[0]);
  });
}
listed = list();
