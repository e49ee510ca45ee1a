// Finding text or an id in a trajectory.

const SPACE = /\u2423/g;

function folded(text) {
  const lower = text.toLowerCase();
  return (lower.length === text.length ? lower : text).replace(SPACE, " ");
}

// Hits as [{row, from, to}], cells of one row each. "id:198" finds an id.
function search(shared, t, query) {
  const id = /^id:(\d+)$/.exec(query.trim());
  const needle = folded(query);
  const hits = [];
  t.rows.forEach((row, number) => {
    if (row.rule) return;
    if (id) {
      for (let at = row.from; at < row.to; at += 1) {
        const ids = shared.cells.ids[t.cells[at]];
        if (ids.includes(Number(id[1]))) hits.push({ row: number, from: at, to: at + 1 });
      }
      return;
    }
    const text = folded(rowText(shared, t, row));
    for (let at = text.indexOf(needle); at >= 0; at = text.indexOf(needle, at + needle.length)) {
      hits.push({ row: number, ...cellsBetween(shared, t, row, at, at + needle.length) });
    }
  });
  return hits;
}

function cellsBetween(shared, t, row, start, end) {
  let from = row.from, to = row.to, n = 0;
  for (let at = row.from; at < row.to; at += 1) {
    if (n <= start) from = at;
    n += shared.cells.text[t.cells[at]].length;
    if (n >= end) {
      to = at + 1;
      break;
    }
  }
  return { from, to };
}
