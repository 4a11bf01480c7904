// What fills the mount, as rectangles: namespaces with their groups; opened, one namespace; opened again, one group.

const TONES = 8;

function drawTreemap(filling, at, entries, open) {
  const place = byId("treemap");
  const parts = filling.namespaces.filter((one) => one.bytes > 0);
  drawCrumbs(at, open);
  if (!parts.length) {
    place.replaceChildren(nothing("Nothing is stored yet", "Run a program with its caches in this mount: ", "kcachefs run -- python train.py"));
    return;
  }
  const tones = new Map(filling.namespaces.map((one, number) => [one.name, number % TONES]));
  const box = { x: 0, y: 0, width: Math.max(200, place.clientWidth), height: place.clientHeight || 344 };
  if (at.group !== null) return drawEntries(place, box, entries, tones.get(at.namespace) || 0);
  if (at.namespace !== null) {
    const space = parts.find((one) => one.name === at.namespace);
    if (!space) return place.replaceChildren(nothing("Empty by now", "Everything in it was evicted."));
    return place.replaceChildren(...groupCells(space, box, tones.get(space.name), open));
  }
  const frames = squarify(parts, box, (one) => Math.max(one.bytes, 0.006 * sumOf(parts.map((part) => part.bytes))));
  place.replaceChildren(...frames.map(([space, where]) => {
    const frame = make("div", "frame");
    set(frame, where);
    const head = where.height > 46 && where.width > 56;
    const inner = { x: 0, y: head ? 20 : 0, width: where.width, height: where.height - (head ? 20 : 0) };
    if (head) frame.append(button(`${space.name} · ${size(space.bytes)}`, "link", () => open(space.name, null), partLabel(space.name, space)));
    if (where.width < 70 || where.height < 60) frame.append(cell(space.name, size(space.bytes), inner, tones.get(space.name), partLabel(space.name, space), () => open(space.name, null)));
    else frame.append(...groupCells(space, inner, tones.get(space.name), open));
    return frame;
  }));
}

function groupCells(space, box, tone, open) {
  return squarify(space.groups.filter((one) => one.bytes > 0), box, (one) => one.bytes).map(([group, where]) => {
    const act = group.what === "rest" ? () => open(space.name, null) : () => open(space.name, group.name);
    return cell(group.name, `${size(group.bytes)} · ${counted(group.entries, "entry", "entries")}`, where, tone, partLabel(`${space.name}, ${group.name}`, group), act);
  });
}

function drawEntries(place, box, entries, tone) {
  if (entries === null) return place.replaceChildren(loading("loading the entries"));
  if (!entries.length) return place.replaceChildren(nothing("Empty by now", "Everything in it was evicted."));
  place.replaceChildren(...squarify(entries, box, (one) => Math.max(1, one.bytes)).map(([entry, where]) => cell(
    entry.name, `${size(entry.bytes)} · ${counted(entry.hits, "hit")}`, where, tone, `${entry.name}, ${size(entry.bytes)}, ${counted(entry.hits, "hit")}`,
    () => { location.hash = "#/entry/" + encodeURIComponent(entry.path); })));
}

function drawCrumbs(at, open) {
  const items = [];
  if (at.namespace !== null) items.push(button("All", "link", () => open(null, null), "All namespaces"), make("span", "", "›"));
  if (at.group !== null) items.push(button(at.namespace, "link", () => open(at.namespace, null)), make("span", "", "›"), make("span", "", at.group));
  else if (at.namespace !== null) items.push(make("span", "", at.namespace));
  fill("crumbs", ...items);
}

function cell(name, more, where, tone, label, act) {
  const form = where.width <= 34 || where.height <= 20 ? " tiny" : where.height > 76 ? " tall" : "";
  const made = button("", `cell tone${tone}${form}`, act, label);
  made.title = visible(label);
  set(made, where);
  if (where.width > 34 && where.height > 20) made.append(make("b", "", name));
  if (where.width > 60 && where.height > 38) made.append(make("span", "", more));
  return made;
}

function partLabel(name, part) {
  const cost = part.cost ? `, ${seconds(part.cost)} to compile` : "";
  return `${name}: ${size(part.bytes)}, ${counted(part.entries, "entry", "entries")}, ${counted(part.hits, "hit")}${cost}`;
}

function set(element, where) {
  const gap = 2;
  element.style.left = `${where.x}px`;
  element.style.top = `${where.y}px`;
  element.style.width = `${Math.max(1, where.width - gap)}px`;
  element.style.height = `${Math.max(1, where.height - gap)}px`;
}

// Rows of rectangles that are as square as can be; each item with its place. The items come largest first.
function squarify(items, box, weigh) {
  const sorted = [...items].sort((a, b) => weigh(b) - weigh(a));
  const total = sumOf(sorted.map(weigh));
  const made = [];
  let { x, y, width, height } = box;
  let left = total;
  let from = 0;
  while (from < sorted.length && width > 0 && height > 0) {
    const shorter = Math.min(width, height);
    const scale = width * height / left;
    let to = from;
    let row = 0;
    let worst = Infinity;
    while (to < sorted.length) {
      const next = row + weigh(sorted[to]);
      const thick = next * scale / shorter;
      const ratio = Math.max(...[sorted[from], sorted[to]].map((one) => {
        const long = weigh(one) * scale / thick;
        return Math.max(long / thick, thick / long);
      }));
      if (ratio > worst) break;
      [worst, row, to] = [ratio, next, to + 1];
    }
    const thick = row * scale / shorter;
    let along = 0;
    for (const item of sorted.slice(from, to)) {
      const long = weigh(item) * scale / thick;
      made.push([item, width >= height ? { x, y: y + along, width: thick, height: long } : { x: x + along, y, width: long, height: thick }]);
      along += long;
    }
    if (width >= height) [x, width] = [x + thick, width - thick]; else [y, height] = [y + thick, height - thick];
    [left, from] = [left - row, to];
  }
  return made;
}
