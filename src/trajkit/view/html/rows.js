// One row: bar, place, kind, and a cell per token or group of tokens.

function drawRow(pane, page, number) {
  const row = pane.t.rows[number];
  if (row.rule) return made("div", "rule", "", ...signed(row.facts.join(" \u00b7 ")));
  const before = pane.t.rows[number - 1];
  const isNew = !before || before.rule || before.kind !== row.kind || before.action !== row.action;
  const element = made("div", `row ${row.action ? "action" : "context"} kind-${row.kind}`);
  const text = made("div", "text");
  const bar = made("i", "bar", row.action ? "\u258c" : "\u00b7");
  bar.setAttribute("role", "img");
  bar.setAttribute("aria-label", row.action ? "action" : "context");
  element.append(bar);
  if (row.first === null) {
    element.classList.add("message");
    element.append(made("i", "at", row.label));
  } else {
    element.append(made("i", "at", String(row.first)));
    element.append(made("i", "kind", isNew ? row.kind : ""));
  }
  const lane = page.shared.lanes.find((each) => each.name === page.overlay);
  const hits = pane.hitsOf.get(number) || [];
  let first = row.first;
  for (let at = row.from; at < row.to; at += 1) {
    const cell = made("span", "c", "", ...signed(page.shared.cells.text[pane.t.cells[at]]));
    const n = page.shared.cells.ids[pane.t.cells[at]].length;
    cell.place = { row: number, at };
    if (cell.textContent.startsWith("\u27ea")) cell.classList.add("control");
    if (lane && row.action && first !== null) {
      const level = laneLevel(lane, laneValues(pane.t, lane, row, first, n));
      if (level === null) cell.classList.add("unknown");
      else if (level) cell.classList.add(level > 0 ? `up${level}` : `down${-level}`);
    }
    for (const mark of marksAt(pane.t, row, first, n)) cell.classList.add(mark.isBehind ? "behind" : mark.isAdded ? "added" : "drift");
    for (const hit of hits) {
      if (hit.from <= at && at < hit.to) {
        cell.classList.add("hit");
        if (hit === pane.hits[pane.hit]) cell.classList.add("current");
      }
    }
    if (pane.pinned && pane.pinned.row === number && pane.pinned.at === at) cell.classList.add("pinned");
    text.append(cell);
    if (first !== null) first += n;
  }
  element.append(text);
  return element;
}
