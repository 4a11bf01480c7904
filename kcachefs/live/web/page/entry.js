// The page of one entry: facts, why it was compiled, source and PTX side by side, its graph, its siblings.

function drawEntry(page, actions) {
  const head = make("div", "entry-head",
    button("← All", "link", () => { location.hash = ""; }, "Back to the overview"),
    make("h1", "", page.name), make("div", "mono", page.path));
  if (actions) {
    head.append(make("div", "buttons",
      button(page.pinned ? "Unpin" : "Pin", "plain", () => actions.change(page.pinned ? "unpin" : "pin", page.path)),
      button("Evict", "plain danger", () => { if (confirm(`Evict ${visible(page.path)}? It has to be compiled again when it is needed.`)) actions.change("evict", page.path); })));
  }
  const parts = [head];
  if (page.problem) parts.push(make("section", "card", nothing("Its files cannot be read", page.problem)));
  const columns = make("div", "columns");
  if (Object.keys(page.facts).length) columns.append(card("Facts", factsOf(page)));
  columns.append(make("div", "stack", whyCard(page), page.siblings.length ? siblingsCard(page) : null));
  parts.push(columns);
  const listings = [page.source && listingCard(page.source, "Source"), page.code && listingCard(page.code, "PTX")].filter(Boolean);
  if (listings.length) {
    const pair = make("div", "listings", ...listings);
    matchLines(pair);
    parts.push(pair);
  }
  if (page.graph_text) parts.push(graphCard(page));
  fill("entry", ...parts);
}

function card(title, ...children) {
  const made = make("section", "card", make("div", "card-head", make("h2", "", title)), ...children);
  made.setAttribute("aria-label", title);
  return made;
}

function factsOf(page) {
  const list = make("dl", "facts");
  for (const [name, value] of Object.entries(page.facts)) {
    const isLink = name === "graph" && page.kind === "kernel";
    list.append(make("dt", "", name), make("dd", "", isLink ? entryLink(value) : value.length > LONG ? folded(value) : value));
  }
  if (page.model && !page.facts.model) list.append(make("dt", "", "model"), make("dd", "mono", page.model));
  return list;
}

const LONG = 180;

function folded(text) {
  return make("details", "", make("summary", "", text.slice(0, 90) + "…"), text);
}

function whyCard(page) {
  const why = page.why;
  if (!why || !why.causes.length) return card("Why it was compiled", nothing("Nobody can say", "There was nothing before it to compare it with."));
  const list = why.causes.slice(0, 6).map((one) => make("div", "cause", make("span", `kind ${one.kind}`, one.kind), make("p", "", (one.certain ? "" : "likely: ") + one.words)));
  if (why.nearest) list.push(make("p", "under", "compared with ", entryLink(why.nearest)));
  return card("Why it was compiled", ...list);
}

function siblingsCard(page) {
  return card("Others of this name", ...page.siblings.map((one) => make("div", "cause",
    make("div", "cause-head", entryLink(one.path, one.path.split("/").pop().slice(0, 20) + "…"), make("span", "dim", counted(one.hits, "hit"))),
    make("p", "names", one.differs.length ? one.differs.slice(0, 4).map((told) => told.words).join("; ") + (one.differs.length > 4 ? ` (and ${one.differs.length - 4} more)` : "") : "differs in nothing that is stored"))));
}

function listingCard(listing, title) {
  const code = make("div", "code");
  code.tabIndex = 0;
  code.setAttribute("role", "region");
  code.setAttribute("aria-label", `${title}; lines that belong together light up in both`);
  listing.lines.forEach((text, at) => {
    const place = listing.places[at];
    const line = make("div", place ? "has" : "", make("b", "", place || ""), text || " ");
    if (place) line.dataset.place = place;
    code.append(line);
  });
  const name = listing.title === title ? null : make("p", "under mono", listing.title);
  return card(title, name, listing.note ? make("p", "under", listing.note) : null, code);
}

// Pointing at a line, or choosing it, lights up its lines in both texts; choosing scrolls the other text there.
function matchLines(pair) {
  let kept = null;
  const light = (place) => {
    for (const line of pair.querySelectorAll(".on")) line.classList.remove("on");
    if (place) for (const line of pair.querySelectorAll(`[data-place="${place}"]`)) line.classList.add("on");
  };
  const placeOf = (event) => event.target.closest("[data-place]")?.dataset.place;
  pair.addEventListener("pointerover", (event) => light(placeOf(event) || kept));
  pair.addEventListener("pointerleave", () => light(kept));
  const keep = (place, from) => {
    kept = place;
    light(place);
    for (const code of pair.querySelectorAll(".code")) {
      const first = code.querySelector(".on");
      if (first && code !== from) code.scrollTop = first.offsetTop - code.offsetTop - code.clientHeight / 3;
    }
  };
  pair.addEventListener("click", (event) => { const place = placeOf(event); if (place) keep(place, event.target.closest(".code")); });
  pair.addEventListener("keydown", (event) => {
    const way = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    const code = event.target.closest(".code");
    if (!way || !code || !event.altKey) return;
    const places = [...new Set([...code.querySelectorAll("[data-place]")].map((line) => line.dataset.place))];
    const at = places.indexOf(kept);
    keep(places[Math.max(0, Math.min(places.length - 1, at < 0 ? 0 : at + way))], null);
    event.preventDefault();
  });
}

function graphCard(page) {
  const text = make("pre", "graph", page.graph_text);
  text.tabIndex = 0;
  return card(page.kind === "kernel" ? "The graph that runs it" : "Graph", page.model ? make("p", "under mono", page.model) : null, text);
}
