// Ties it together: where data comes from (the server, or the report's own), what is shown, and when it is refreshed.

const embedded = byId("data") ? JSON.parse(byId("data").textContent) : null;
const view = {
  mount: "", glance: null, revision: 0, measure: "uses", range: embedded ? embedded.range : "6h", series: null, filling: null, at: { namespace: null, group: null }, entries: null,
  top: "size", span: "last", run: null, causes: null, kernels: null, search: "", mounts: null, changes: false, seen: {}, lost: 0,
};
const order = { key: "used", up: false, choose: (key) => { order.up = order.key === key ? !order.up : key === "name"; order.key = key; showKernels(); } };
const PACE = { glance: 1000, series: 5, dear: 12, mounts: 15 };
const spanWords = embedded ? embedded.words : "this week";

async function ask(name, query) {
  if (embedded) return embeddedAnswer(name, query);
  const words = new URLSearchParams(Object.entries({ mount: view.mount, ...query }).filter(([, value]) => value !== "" && value !== null));
  const reply = await fetch(`api/${name}?${words}`, { credentials: "same-origin" });
  if (reply.headers.get("content-type") !== "application/json") throw new Refused((await reply.text()).trim() || `status ${reply.status}`);
  const told = await reply.json();
  if (!reply.ok) throw new Error(told.error);
  return told;
}

class Refused extends Error {}

function embeddedAnswer(name, query) {
  if (name === "entry") {
    if (embedded.pages[query.path]) return embedded.pages[query.path];
    throw new Error("This report does not hold that entry's files; look at it with: kcachefs show " + query.path);
  }
  if (name === "entries") return embedded.entries[`${query.namespace}/${query.group}`] || [];
  if (name === "series") return embedded.series[query.range];
  if (name === "kernels") return { ...embedded.kernels, rows: embedded.kernels.rows.filter((row) => row.name.includes(query.search)) };
  return embedded[name];
}

async function change(verb, path) {
  try {
    const reply = await fetch(`api/${verb}?${new URLSearchParams({ mount: view.mount })}`, { method: "POST", headers: { "X-Kcachefs-Change": verb, "Content-Type": "application/json" }, body: JSON.stringify({ path }) });
    const told = reply.headers.get("content-type") === "application/json" ? await reply.json() : { error: await reply.text() };
    if (!reply.ok) throw new Error(told.error);
    if (told.refused && told.refused.length) throw new Error("It is in use or pinned, so it was left alone.");
    view.seen = {};
    if (verb === "evict") location.hash = ""; else await showEntry(path);
  } catch (error) { banner("It was not done.", error.message); }
}

// --- the quick part -------------------------------------------------------------------------------------------------

let timer = 0;

async function refresh() {
  try {
    const told = await ask("glance", { revision: view.glance ? view.revision : "" });
    if (view.lost) banner();
    view.lost = 0;
    if (told.headline) {
      view.glance = told;
      view.revision = told.revision;
      showGlance();
    } else view.glance.now = told.now;
    byId("clock").textContent = embedded ? `as of ${moment(told.now)}` : clock(told.now, true);
    await refreshOthers();
  } catch (error) {
    view.lost += 1;
    byId("overview").classList.add("stale");
    if (error instanceof Refused) banner("This page may not look any more.", error.message);
    else if (view.lost > 1 || !view.glance) banner("The page's server does not answer.", "Start it again with kcachefs web; this page goes on trying.");
    if (!view.glance) for (const id of ["chart", "treemap", "top", "causes", "runs", "kernels", "namespaces", "events", "users", "mounts", "tiles"]) fill(id, nothing("Waiting for the server"));
  }
  clearTimeout(timer);
  if (!embedded) timer = setTimeout(() => document.hidden ? 0 : refresh(), PACE.glance * Math.min(10, 1 + view.lost));
}

function banner(title, text) {
  const place = byId("banner");
  if (!title) return place.replaceChildren();
  place.replaceChildren(make("div", "banner", make("b", "", title), make("span", "", text || "")));
}

function showGlance() {
  drawState(view.glance);
  drawTiles(view.glance, spanWords);
  drawNamespaces(view.glance);
  drawRuns(view.glance, embedded ? null : (run) => { view.span = "run"; view.run = run; view.causes = null; showCauses(); byId("causes-title").scrollIntoView({ block: "nearest" }); });
  drawEvents(view.glance);
  drawUsers(view.glance, spanWords);
}

// --- the dear parts: when they were never shown, or something changed some time ago -----------------------------------

async function refreshOthers() {
  if (!byId("entry").hidden) return;
  const total = view.glance.headline.total;
  const state = `${view.glance.headline.state} ${view.glance.headline.restarts}`;
  const used = total ? `${state} ${total.hits} ${total.misses} ${total.evictions}` : state;
  const made = total ? `${state} ${total.entries} ${total.misses} ${total.evictions}` : state;
  if (isDue("series", used, PACE.series, 60)) await part("chart", showSeries);
  // The dear ones wait for their turn at the server; the quick part goes on meanwhile.
  if (isDue("filling", made, PACE.dear, view.filling && !view.filling.complete ? PACE.dear : 600)) part("treemap", showFilling);
  if (isDue("causes", made, PACE.dear, 600)) part("causes", showCauses);
  if (isDue("kernels", made, PACE.dear, view.kernels && !view.kernels.complete ? PACE.dear : 600)) part("kernels", showKernels);
  if (isDue("mounts", state, PACE.mounts, PACE.mounts)) part("mounts", showMounts);
}

function isDue(name, change, pause, longest) {
  const seen = view.seen[name];
  const now = view.glance.now;
  const past = seen ? now - seen.when : -1; // before that: the clock of the mount's host was set back
  if (past >= 0 && (past < pause || (seen.change === change && past < longest))) return false;
  view.seen[name] = { when: now, change };
  return true;
}

async function part(id, show) {
  try { await show(true); } catch (error) { if (!byId(id).querySelector("table, svg, .cell, .cause")) fill(id, failed(error)); }
}

async function showSeries(anew) {
  choice("ranges", RANGE_NAMES, view.range, (range) => { view.range = range; view.series = null; part("chart", showSeries); });
  choice("measures", Object.fromEntries(Object.entries(MEASURES).map(([name, one]) => [name, one.name])), view.measure, (measure) => { view.measure = measure; part("chart", () => showSeries(false)); });
  const range = view.range;
  if (!view.series) fill("chart", loading("loading the history"));
  if (anew || !view.series) view.series = await ask("series", { range });
  if (range === view.range && !byId("chart").contains(document.activeElement)) drawChart(view.series, view.measure);
}

async function showFilling(anew) {
  choice("tops", { size: "Biggest", cost: "Costliest" }, view.top, (top) => { view.top = top; showFilling(false); });
  if (anew || !view.filling) view.filling = await ask("filling", {});
  const at = view.at;
  if (at.group !== null && (anew || view.entries === null)) {
    drawTreemap(view.filling, at, null, openPart);
    view.entries = await ask("entries", { namespace: at.namespace, group: at.group });
    if (at !== view.at) return;
  }
  drawTreemap(view.filling, at, view.entries, openPart);
  drawTop(view.filling, view.top);
}

function openPart(namespace, group) {
  view.at = { namespace, group };
  view.entries = null;
  part("treemap", () => showFilling(false));
}

async function showCauses(anew) {
  const spans = embedded ? {} : { last: "Last run", week: "7 days", ...(view.run !== null ? { run: `Run ${view.run}` } : {}) };
  choice("spans", spans, view.span, (span) => { view.span = span; view.causes = null; part("causes", showCauses); });
  const span = view.span;
  if (!view.causes) fill("causes", loading("finding causes"));
  if (anew || !view.causes) view.causes = await ask("causes", span === "last" ? {} : span === "run" ? { run: view.run } : { since: 7 * 86400 });
  if (span === view.span) drawCauses(view.causes);
}

async function showKernels(anew) {
  const search = view.search;
  if (anew || !view.kernels) view.kernels = await ask("kernels", { search });
  if (search === view.search) drawKernels(view.kernels, order, search, view.glance.now);
}

async function showMounts() {
  if (embedded) { byId("mounts-card").hidden = true; return; }
  view.mounts = await ask("mounts", {});
  view.changes = view.mounts.changes;
  const chooser = byId("mount");
  const shown = view.glance.headline.mountpoint;
  if (view.mounts.shown.length > 1 && chooser.options.length !== view.mounts.shown.length) {
    chooser.replaceChildren(...view.mounts.shown.map((one) => { const made = make("option", "", one); made.value = one; return made; }));
    [chooser.hidden, byId("place").hidden] = [false, true];
  }
  chooser.value = shown;
  drawMounts(view.mounts, shown, chooseMount, view.glance.now);
}

function chooseMount(mountpoint) {
  Object.assign(view, { mount: mountpoint, revision: 0, series: null, filling: null, at: { namespace: null, group: null }, entries: null, causes: null, kernels: null, span: "last", run: null, seen: {} });
  for (const id of ["chart", "treemap", "top", "causes", "kernels"]) fill(id, loading());
  view.glance = null;
}

// --- one entry --------------------------------------------------------------------------------------------------------

async function showEntry(path) {
  [byId("overview").hidden, byId("entry").hidden] = [true, false];
  fill("entry", loading("loading the entry"));
  scrollTo(0, 0);
  try {
    const page = await ask("entry", { path });
    if (location.hash === "#/entry/" + encodeURIComponent(path)) drawEntry(page, view.changes ? { change } : null);
  } catch (error) {
    fill("entry", button("← All", "link", () => { location.hash = ""; }), failed(error));
  }
}

let before = 0;

function route() {
  const found = /^#\/entry\/(.+)$/.exec(location.hash);
  if (found) {
    if (byId("entry").hidden) before = scrollY;
    let path = "";
    try { path = decodeURIComponent(found[1]); } catch { /* no path that anybody made */ }
    return showEntry(path);
  }
  [byId("overview").hidden, byId("entry").hidden] = [false, true];
  byId("entry").replaceChildren();
  redraw();
  scrollTo(0, before);
}

function redraw() {
  if (!byId("entry").hidden || !view.glance) return;
  if (view.series) drawChart(view.series, view.measure);
  if (view.filling) drawTreemap(view.filling, view.at, view.entries, openPart);
}

function start() {
  for (const id of ["chart", "treemap", "top", "causes", "runs", "kernels", "namespaces", "events", "users", "mounts"]) fill(id, loading());
  fill("tiles", ...[1, 2, 3, 4].map(() => make("div", "tile", loading("loading the headline"))));
  byId("foot").textContent = embedded ? embedded.foot : "Everything on this page comes from this machine. Looking at it counts no hit.";
  if (embedded && embedded.title) byId("clock").before(make("span", "dim", embedded.title));
  let waiting = 0;
  byId("search").addEventListener("input", (event) => {
    clearTimeout(waiting);
    waiting = setTimeout(() => { view.search = event.target.value.trim(); view.kernels = null; part("kernels", showKernels); }, 200);
  });
  byId("mount").addEventListener("change", (event) => chooseMount(event.target.value));
  document.addEventListener("visibilitychange", () => { if (!document.hidden && !embedded) refresh(); });
  addEventListener("hashchange", route);
  new ResizeObserver(redraw).observe(byId("chart"));
  refresh().then(() => { if (location.hash) route(); });
}

start();
