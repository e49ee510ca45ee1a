"use strict";
// What the page holds, opened: columns into rows. Nothing here touches the document.

const LONG_ROW = 400; // cells; a longer line is drawn as several rows

async function unpack(text) {
  const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return JSON.parse(await new Response(stream).text());
}

// A trajectory: rows [{rule, facts, step} | {action, kind, label, first, from, to, step}], where
// [from, to) are places in `cells` and `first` is the token of the first one (null: no tokens).
function opened(shared, entry, raw) {
  const t = { ...entry, facts: raw.facts, totals: raw.totals, cells: raw.cells, lanes: raw.lanes };
  t.marks = raw.marks.map((marks) => marks.map(
    ([start, end, added, told, ids]) => ({ start, end, isAdded: added > 0, isBehind: added > 1, told, ids })));
  t.steps = raw.steps.map(([, index, start, end]) => ({ index, start, end, row: 0 }));
  t.rows = [];
  let cell = 0, rule = 0, label = 0, step = -1;
  raw.rows.kind.forEach((code, i) => {
    if (code < 0) {
      if (step + 1 < raw.steps.length && raw.steps[step + 1][0] === i) {
        step += 1;
        t.steps[step].row = t.rows.length;
      }
      t.rows.push({ rule: true, facts: raw.rows.rules[rule++], step: Math.max(step, 0) });
      return;
    }
    const end = cell + raw.rows.n[i];
    const line = { rule: false, action: code % 2 === 1, kind: shared.kinds[code >> 1], step };
    let first = raw.rows.start[i];
    line.label = first === null ? raw.rows.labels[label++] : "";
    do {
      const to = Math.min(end, cell + LONG_ROW);
      t.rows.push({ ...line, first, from: cell, to });
      if (first !== null) first += tokensIn(shared, t.cells, cell, to);
      line.label = "";
      cell = to;
    } while (cell < end);
  });
  return t;
}

function tokensIn(shared, cells, from, to) {
  let n = 0;
  for (let i = from; i < to; i += 1) n += shared.cells.ids[cells[i]].length;
  return n;
}

function rowText(shared, t, row) {
  let text = "";
  for (let i = row.from; i < row.to; i += 1) text += shared.cells.text[t.cells[i]];
  return text;
}

// What is known of one cell: its tokens [first, first + ids.length), and the numbers of each lane.
function cellFacts(shared, t, row, at) {
  const ids = shared.cells.ids[t.cells[at]];
  const first = row.first === null ? null : row.first + tokensIn(shared, t.cells, row.from, at);
  const hex = shared.bytes && ids.map((id) => (id === null ? "not shown" : shared.bytes[shared.idPlace.get(id)]));
  const numbers = shared.lanes
    .filter((lane) => t.lanes[lane.name])
    .map((lane) => ({ lane, values: laneValues(t, lane, row, first, ids.length) }));
  return { first, ids, hex, text: shared.cells.text[t.cells[at]], numbers };
}

// What a drift check found at tokens [first, first + n) of a row.
function marksAt(t, row, first, n) {
  if (first === null) return [];
  return (t.marks[row.step] || []).filter((mark) => mark.start < first + n && mark.end > first);
}

// The values of a lane at tokens of an action: null where one is missing; [] outside actions.
function laneValues(t, lane, row, first, n) {
  const step = t.steps[row.step];
  const values = t.lanes[lane.name] && t.lanes[lane.name][row.step];
  if (!row.action || first === null || step.start === undefined) return [];
  if (!values) return new Array(n).fill(null);
  return values.slice(first - step.start, first - step.start + n);
}

// How much of a cell a lane fills: -8..8, or null where its value is missing.
function laneLevel(lane, values) {
  let level = 0;
  for (const told of values) {
    if (told === null) return null;
    const value = typeof told === "string" ? Number(told.replace("inf", "Infinity")) : told;
    const share = lane.signed ? value / Math.abs(lane.full) : Math.max(0, value / lane.full);
    const found = Math.floor(Math.min(Math.abs(share), 1) * 8 + 0.5);
    if (found > Math.abs(level)) level = found * Math.sign(share);
  }
  return level;
}

// The row that shows a token of a step, or the step's first row.
function rowOfToken(shared, t, step, token) {
  let i = t.steps[step].row;
  const heading = i;
  for (i += 1; i < t.rows.length && t.rows[i].step === step && !t.rows[i].rule; i += 1) {
    const row = t.rows[i];
    if (row.first === null || token < row.first) continue;
    if (token < row.first + tokensIn(shared, t.cells, row.from, row.to)) return i;
  }
  return heading;
}

function cellOfToken(shared, t, row, token) {
  let first = row.first;
  for (let at = row.from; at < row.to; at += 1) {
    first += shared.cells.ids[t.cells[at]].length;
    if (token < first) return at;
  }
  return row.from;
}
