// The whole trajectory in one strip: full width for actions, half for context, a line per step.
function drawMap(pane, page) {
  const { canvas: map, scroll, t } = pane;
  const ratio = window.devicePixelRatio || 1;
  const height = scroll.clientHeight;
  const width = 34;
  map.width = width * ratio;
  map.height = height * ratio;
  const ink = map.getContext("2d");
  ink.scale(ratio, ratio);
  const paint = page.colours();
  const lane = page.shared.lanes.find((each) => each.name === page.overlay);
  const each = Math.min(3, height / Math.max(1, t.rows.length));
  const thick = Math.max(1, each - 0.5);
  const bar = (number, colour, x, w) => {
    ink.fillStyle = colour;
    ink.fillRect(x, number * each, w, thick);
  };
  for (const side of [false, true]) {
    t.rows.forEach((row, number) => {
      if (row.rule || row.action !== side) return;
      const n = Math.min(1, (row.to - row.from) / 24);
      bar(number, side ? paint.action : paint.context, 2, side ? 8 + 16 * n : 4 + 12 * n);
      if (!lane || !side || row.first === null) return;
      const values = laneValues(t, lane, row, row.first, tokensIn(page.shared, t.cells, row.from, row.to));
      const level = laneLevel(lane, values.filter((value) => value !== null));
      if (level) bar(number, level > 0 ? paint.heat : paint.cold, 26, Math.abs(level) * 0.6);
    });
  }
  t.rows.forEach((row, number) => row.rule && bar(number, paint.ink, 0, 26));
  t.rows.forEach((row, number) => {
    if (row.rule || row.first === null) return;
    const n = tokensIn(page.shared, t.cells, row.from, row.to);
    if (marksAt(t, row, row.first, n).length) bar(number, paint.cold, 28, 6);
  });
  pane.hits.forEach((hit) => bar(hit.row, paint.hit, 26, 8));
  pane.mapHeight = each * t.rows.length;
  moveBox(pane);
}

// Where the view is on the strip.
function moveBox(pane) {
  const { scroll, box } = pane;
  pane.mapScale = pane.mapHeight / Math.max(1, scroll.scrollHeight);
  box.style.top = `${scroll.scrollTop * pane.mapScale}px`;
  box.style.height = `${Math.max(6, scroll.clientHeight * pane.mapScale)}px`;
}
