// The page: which trajectories are on it, keys and links.

const MOST_PANES = 24; // side by side
const MOST_OPEN = 64; // trajectories kept unpacked
const THEMES = ["light dark", "light", "dark"];

async function start() {
  const held = JSON.parse(document.getElementById("held").textContent);
  const shared = await unpack(held.shared);
  controls = shared.controls;
  shared.idPlace = new Map(shared.ids.map((id, place) => [id, place]));
  const page = {
    shared, held, panes: [], active: 0, at: 0, overlay: "mask", theme: 0, isPrinting: false,
    open: new Map(),
  };
  page.colours = () => {
    const of = (name) => getComputedStyle(page.swatches[name]).color;
    return Object.fromEntries(Object.keys(page.swatches).map((name) => [name, of(name)]));
  };
  buildFrame(page);
  await follow(page);
  window.addEventListener("hashchange", () => follow(page));
  window.addEventListener("resize", () => page.panes.forEach((pane) => drawMap(pane, page)));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    page.panes.forEach((pane) => drawMap(pane, page));
  });
  window.addEventListener("beforeprint", () => {
    page.isPrinting = true;
    page.panes.forEach((pane) => pane.blocks.forEach((block) => fill(pane, page, block)));
  });
  window.addEventListener("afterprint", () => { page.isPrinting = false; });
  document.addEventListener("keydown", (event) => onKey(page, event));
  document.documentElement.dataset.ready = "yes";
}

async function trajectory(page, number) {
  if (!page.open.has(number)) {
    const raw = await unpack(page.held.trajectories[number]);
    page.open.set(number, opened(page.shared, page.shared.index[number], raw));
    const [oldest] = page.open.keys();
    const t = page.open.get(number);
    if (page.open.size > MOST_OPEN) page.open.delete(oldest);
    return t;
  }
  return page.open.get(number);
}

// Whether they are on the screen now: not where others were asked for meanwhile.
async function show(page, numbers) {
  page.wish = numbers;
  const opened_ = await Promise.all(numbers.map((number) => trajectory(page, number)));
  if (page.wish !== numbers) return false;
  page.panes.forEach((pane) => pane.watcher.disconnect());
  page.panes = opened_.map((t) => makePane(t));
  page.numbers = numbers;
  page.stage.replaceChildren(...page.panes.map((pane) => pane.root));
  document.body.classList.toggle("compare", numbers.length > 1);
  page.panes.forEach((pane, place) => listen(page, pane, place));
  setActive(page, 0);
  listOverlays(page);
  page.panes.forEach((pane) => startPane(pane, page));
  if (page.query.value) runSearch(page);
  tell(page, null);
  if (!isTyping(document.activeElement || document.body)) focusPane(page);
  return true;
}

// So that the keys that scroll do; a ring shows only where somebody came by Tab.
function focusPane(page) {
  page.panes[page.active]?.scroll.focus({ preventScroll: true, focusVisible: false });
}

function setActive(page, place) {
  page.active = place;
  page.at = page.numbers[place];
  page.panes.forEach((pane, i) => pane.root.classList.toggle("active", i === place));
  for (const [number, link] of page.links) {
    if (page.numbers.includes(number)) link.setAttribute("aria-current", "true");
    else link.removeAttribute("aria-current");
    link.tabIndex = number === page.at ? 0 : -1;
  }
}

function listen(page, pane, place) {
  const { scroll, map } = pane;
  const placeOf = (event) => event.target.closest && event.target.closest(".c");
  pane.root.addEventListener("pointerdown", () => setActive(page, place));
  scroll.addEventListener("mouseover", (event) => {
    const cell = placeOf(event);
    if (cell) tell(page, pane, cell.place);
  });
  scroll.addEventListener("mouseleave", () => tell(page, pane, pane.pinned));
  scroll.addEventListener("click", (event) => {
    const cell = placeOf(event);
    if (cell) pin(page, pane, cell.place);
  });
  let isWaiting = false;
  scroll.addEventListener("scroll", () => {
    if (isWaiting) return;
    isWaiting = true;
    requestAnimationFrame(() => {
      isWaiting = false;
      updateStep(pane);
      moveBox(pane);
    });
  }, { passive: true });
  const drag = (event) => {
    if (event.type === "pointermove" && !event.buttons) return;
    const y = event.clientY - map.getBoundingClientRect().top;
    scroll.scrollTop = y / pane.mapScale - scroll.clientHeight / 2;
  };
  map.addEventListener("pointerdown", drag);
  map.addEventListener("pointermove", drag);
}

function pin(page, pane, place) {
  const before = pane.pinned;
  pane.pinned = place;
  for (const at of [before, place]) {
    const element = at && rowElement(pane, at.row);
    if (element) element.replaceWith(drawRow(pane, page, at.row));
  }
  tell(page, pane, place);
  const row = place && pane.t.rows[place.row];
  if (!row) return;
  setStep(pane, row.step);
  const { first } = cellFacts(page.shared, pane.t, row, place.at);
  setLink(page, pane, first);
}

// Choose what was found, or the first token of the step's action, or of the step.
function choose(page) {
  const pane = page.panes[page.active];
  const hit = pane.hits[pane.hit];
  const own = pane.t.rows.map((row, number) => ({ row, number }))
    .filter(({ row }) => !row.rule && row.step === pane.step);
  const first = own.find(({ row }) => row.action) || own[0];
  const place = hit ? { row: hit.row, at: hit.from } : first && { row: first.number, at: first.row.from };
  if (!place) return;
  jump(pane, page, place.row, "center");
  pin(page, pane, place);
}

function moveToken(page, by) {
  const pane = page.panes[page.active];
  if (!pane.pinned) return;
  let { row, at } = pane.pinned;
  at += by;
  while (pane.t.rows[row] && (pane.t.rows[row].rule || at < pane.t.rows[row].from || at >= pane.t.rows[row].to)) {
    row += by;
  }
  if (!pane.t.rows[row]) return;
  const element = rowElement(pane, row);
  if (!element) jump(pane, page, row, "center");
  else element.scrollIntoView({ block: "nearest" });
  pin(page, pane, { row, at });
}

// Links: #/trajectory/step/token, the last two where they are known.
function setLink(page, pane, token) {
  const parts = [pane.t.name];
  const step = pane.t.steps[pane.step];
  if (step) parts.push(step.index);
  if (step && token !== null && token !== undefined) parts.push(token);
  history.replaceState(null, "", `#/${parts.map(encodeURIComponent).join("/")}`);
}

async function follow(page) {
  let parts = [];
  try {
    parts = location.hash.replace(/^#\/?/, "").split("/").map(decodeURIComponent);
  } catch { /* no link of ours */ }
  const [name, step, token] = parts;
  const found = page.shared.index.findIndex((entry) => entry.name === name);
  if (found < 0 && page.panes.length) return;
  const number = found < 0 ? page.order[0] : found;
  if (number === undefined) return;
  if (!page.panes.length || page.at !== number) await show(page, [number]);
  const pane = page.panes[page.active];
  const at = pane.t.steps.findIndex((each) => String(each.index) === step);
  if (at < 0) return;
  if (!/^\d+$/.test(token || "")) {
    jump(pane, page, pane.t.steps[at].row, "start");
    return;
  }
  const row = rowOfToken(page.shared, pane.t, at, Number(token));
  jump(pane, page, row, "center");
  if (!pane.t.rows[row].rule) {
    pin(page, pane, { row, at: cellOfToken(page.shared, pane.t, pane.t.rows[row], Number(token)) });
  }
}

async function visit(page, number) {
  if (!(await show(page, [number]))) return;
  setLink(page, page.panes[0]);
  focusPane(page);
}

async function compare(page, numbers) {
  const shown = numbers.slice(0, MOST_PANES);
  if (!(await show(page, shown)) || shown.length === numbers.length) return;
  page.found.textContent = `the first ${MOST_PANES} of ${numbers.length.toLocaleString("en")}`;
}

function goStep(page, by) {
  const pane = page.panes[page.active];
  const step = Math.min(Math.max(pane.step + by, 0), pane.t.steps.length - 1);
  if (!pane.t.steps[step]) return;
  jump(pane, page, pane.t.steps[step].row, "start");
  setLink(page, pane);
}

function goTrajectory(page, by) {
  if (page.panes.length > 1) {
    setActive(page, (page.active + by + page.panes.length) % page.panes.length);
    focusPane(page);
    page.panes[page.active].root.scrollIntoView({ block: "nearest", inline: "nearest" });
    return;
  }
  const place = page.order.indexOf(page.at) + by;
  if (page.order[place] !== undefined) {
    visit(page, page.order[place]);
    page.links.get(page.order[place]).scrollIntoView({ block: "nearest" });
  }
}

// The next mark behind the chosen token, or behind the step in view; the first one after the last.
function nextDrift(page) {
  const pane = page.panes[page.active];
  const places = pane.t.marks.flatMap((marks, step) => marks.map((mark) => ({ step, start: mark.start })));
  if (!places.length) return;
  places.sort((a, b) => a.step - b.step || a.start - b.start);
  const last = pane.mark || { step: -1, start: 0 };
  const next = places.find((p) => p.step > last.step || (p.step === last.step && p.start > last.start));
  pane.mark = next || places[0];
  const row = rowOfToken(page.shared, pane.t, pane.mark.step, pane.mark.start);
  jump(pane, page, row, "center");
  if (pane.t.rows[row].rule) return;
  pin(page, pane, { row, at: cellOfToken(page.shared, pane.t, pane.t.rows[row], pane.mark.start) });
}

function toggleCompare(page) {
  if (page.panes.length > 1) {
    visit(page, page.at);
    return;
  }
  const group = page.shared.index[page.at].group;
  const numbers = group === null ? [] : page.groups.get(group);
  if (numbers.length > 1) compare(page, numbers);
}

function listOverlays(page) {
  const has = (lane) => page.panes.some((pane) => pane.t.lanes[lane.name]);
  const lanes = page.shared.lanes.filter(has);
  const options = [["mask", "mask"], ["kinds", "kinds"], ...lanes.map((l) => [l.name, l.title])];
  page.overlays.replaceChildren(...options.map(([name, title]) => {
    const option = made("option", "", title);
    option.value = name;
    return option;
  }));
  const names = options.map(([name]) => name);
  setOverlay(page, names.includes(page.overlay) ? page.overlay : "mask");
}

function setOverlay(page, name) {
  page.overlay = name;
  page.overlays.value = name;
  const lane = page.shared.lanes.find((each) => each.name === name);
  document.body.classList.toggle("kinds", name === "kinds");
  document.body.classList.toggle("heat", Boolean(lane));
  page.scale.textContent = lane
    ? `${lane.title}: nothing at 0, full height from ${lane.full} on; ${
      lane.signed ? "positive from below, negative from above; " : ""}dotted where it is missing`
    : "";
  page.panes.forEach((pane) => redraw(pane, page));
}

function turnTheme(page) {
  page.theme = (page.theme + 1) % THEMES.length;
  document.documentElement.style.colorScheme = THEMES[page.theme];
  page.panes.forEach((pane) => drawMap(pane, page));
}

function runSearch(page) {
  const query = page.query.value;
  page.panes.forEach((pane) => {
    pane.hits = query ? search(page.shared, pane.t, query) : [];
    pane.hitsOf = new Map();
    for (const hit of pane.hits) {
      if (!pane.hitsOf.has(hit.row)) pane.hitsOf.set(hit.row, []);
      pane.hitsOf.get(hit.row).push(hit);
    }
    pane.hit = -1;
  });
  const first = page.panes.findIndex((pane) => pane.hits.length);
  if (first >= 0 && !page.panes[page.active].hits.length) setActive(page, first);
  page.panes.forEach((pane) => redraw(pane, page));
  page.found.textContent = query ? "nothing" : "";
  if (first >= 0) nextHit(page, 1);
}

function nextHit(page, by) {
  const pane = page.panes[page.active];
  const n = pane.hits.length;
  if (!n) return;
  const before = pane.hits[pane.hit];
  pane.hit = (pane.hit + by + n) % n;
  const hit = pane.hits[pane.hit];
  jump(pane, page, hit.row, "center");
  for (const at of new Set([before ? before.row : hit.row, hit.row])) {
    const element = rowElement(pane, at);
    if (element) element.replaceWith(drawRow(pane, page, at));
  }
  page.found.textContent = `${(pane.hit + 1).toLocaleString("en")} of ${n.toLocaleString("en")}`;
  drawMap(pane, page);
}

const ACTS = {
  j: (page) => goStep(page, 1),
  k: (page) => goStep(page, -1),
  n: (page) => goTrajectory(page, 1),
  p: (page) => goTrajectory(page, -1),
  o: (page) => {
    const names = [...page.overlays.options].map((option) => option.value);
    setOverlay(page, names[(names.indexOf(page.overlay) + 1) % names.length]);
  },
  d: (page) => nextDrift(page),
  b: () => document.body.classList.toggle("borders"),
  g: (page) => toggleCompare(page),
  i: (page) => { page.index.hidden = !page.index.hidden; },
  t: (page) => turnTheme(page),
  "/": (page) => page.query.select(),
  "?": (page) => page.help.showModal(),
  Enter: (page) => choose(page),
  ArrowLeft: (page) => moveToken(page, -1),
  ArrowRight: (page) => moveToken(page, 1),
  Escape: (page) => pin(page, page.panes[page.active], null),
};

function isTyping(element) {
  return /^(INPUT|SELECT)$/.test(element.tagName);
}

function onKey(page, event) {
  const isPress = event.key === "Enter" && event.target.tagName === "BUTTON";
  const isArrow = event.key.startsWith("Arrow") && !(page.panes[page.active] || {}).pinned;
  const isPlain = !event.ctrlKey && !event.metaKey && !event.altKey;
  if (isTyping(event.target) || isPress || isArrow || !isPlain || page.help.open || !page.panes.length) return;
  if (!Object.hasOwn(ACTS, event.key)) return;
  event.preventDefault();
  ACTS[event.key](page);
}

start().catch((problem) => {
  const why = typeof DecompressionStream === "undefined"
    ? "This browser cannot open the data: it lacks DecompressionStream (2023)."
    : `The page could not be drawn: ${problem.message}`;
  document.getElementById("app").replaceChildren(made("p", "trouble", why));
});
