// The chart of what happened over time: bars for counts, an area for the size, small triangles for events.

const MEASURES = {
  uses: { name: "Hits and misses", columns: [["hits", "hits", "Hits"], ["misses", "misses", "Misses"]], show: count },
  served: { name: "Bytes served", columns: [["bytes_served", "served", "Bytes served"]], show: size },
  saved: { name: "Time saved", columns: [["seconds_saved", "saved", "Compiling not repeated"]], show: seconds },
  size: { name: "Size", columns: [["used_bytes", "size", "On disk"]], show: size },
};
const RANGE_NAMES = { "6h": "6 h", "14d": "14 d", "2y": "2 y" };
const RANGE_WORDS = { "6h": "six hours", "14d": "two weeks", "2y": "two years" };

function drawChart(series, measureName) {
  const place = byId("chart");
  const measure = MEASURES[measureName];
  const isArea = measureName === "size";
  const columns = measure.columns.map(([column]) => isArea ? carried(series[column]) : series[column]);
  const points = columns[0].length;
  const totals = Array.from({ length: points }, (_, at) => columns.reduce((sum, one) => sum + (one[at] || 0), 0));
  drawLegend(series, measure, columns, isArea);
  if (!totals.some((one) => one > 0)) {
    place.replaceChildren(nothing(`Nothing in these ${RANGE_WORDS[series.range]}`, "Hits and misses show up here a few seconds after a program used the mount."));
    return;
  }
  const [width, height] = [Math.max(240, place.clientWidth), place.clientHeight || 228];
  const [left, right, top, bottom] = [48, 4, 24, 22];
  const most = niceTop(Math.max(...totals), measure);
  const x = (at) => left + (width - left - right) * at / points;
  const y = (value) => height - bottom - (height - top - bottom) * value / most;
  const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", tabindex: "0", "aria-label": chartLabel(series, measure, columns, isArea) });
  for (const part of [0, 0.5, 1]) {
    picture.append(
      svg("line", { x1: left, x2: width - right, y1: y(part * most), y2: y(part * most), class: part ? "grid" : "base" }),
      svg("text", { x: left - 8, y: y(part * most) + 4, "text-anchor": "end" }, axis(part * most, measure)));
  }
  drawTimes(picture, series, x, height, width);
  if (isArea) drawArea(picture, columns[0], x, y); else drawBars(picture, measure, columns, x, y, points);
  const above = new Map();
  for (const mark of series.marks) {
    const at = Math.round((mark.when - series.start) / series.step) + 0.5;
    const middle = x(at);
    const below = above.get(at) || 0;
    above.set(at, below + 1);
    picture.append(svg("path", { d: `M${middle - 5} ${1 + 10 * below}h10l-5 8z`, class: `mark-${mark.kind}` }, svg("title", {}, `${moment(mark.when)}: ${mark.words}`)));
  }
  const cursor = svg("line", { y1: top - 6, y2: height - bottom, class: "cursor", visibility: "hidden" });
  picture.append(cursor);
  const tip = make("div", "tip");
  tip.hidden = true;
  tip.setAttribute("role", "status");
  place.replaceChildren(picture, tip);
  followCursor(picture, cursor, tip, { series, measure, columns, x, width, left, right, points });
}

// A stretch in which nothing was written down has the size of before.
function carried(values) {
  let last = 0;
  return values.map((value) => (last = value === null ? last : value));
}

function drawBars(picture, measure, columns, x, y, points) {
  const wide = Math.max(1, x(1) - x(0) - (x(1) - x(0) > 4 ? 1 : 0));
  measure.columns.forEach(([, kind], which) => {
    let path = "";
    for (let at = 0; at < points; at++) {
      const value = columns[which][at];
      if (!value) continue;
      const below = columns.slice(0, which).reduce((sum, one) => sum + one[at], 0);
      const high = Math.max(1, y(below) - y(below + value));
      path += `M${x(at).toFixed(1)} ${(y(below) - high).toFixed(1)}h${wide.toFixed(1)}v${high.toFixed(1)}h-${wide.toFixed(1)}z`;
    }
    picture.append(svg("path", { d: path, class: `bars-${kind}` }));
  });
}

function drawArea(picture, values, x, y) {
  const line = values.map((value, at) => `${at ? "L" : "M"}${x(at + 0.5).toFixed(1)} ${y(value).toFixed(1)}`).join("");
  const [first, last] = [x(0.5).toFixed(1), x(values.length - 0.5).toFixed(1)];
  picture.append(svg("path", { d: `${line}L${last} ${y(0)}L${first} ${y(0)}z`, class: "area-size" }), svg("path", { d: line, class: "line-size" }));
}

function drawTimes(picture, series, x, height, width) {
  const labels = width < 500 ? 4 : 7;
  const points = series.hits.length;
  for (let at = Math.round(points / labels / 2); at < points; at += Math.round(points / labels)) {
    const when = series.start + at * series.step;
    const text = series.range === "6h" ? clock(when) : day(when, series.range === "2y");
    picture.append(svg("text", { x: x(at), y: height - 5, "text-anchor": "middle" }, text));
  }
}

function followCursor(picture, cursor, tip, at) {
  let chosen = -1;
  const show = (point) => {
    chosen = Math.max(0, Math.min(at.points - 1, point));
    const middle = at.x(chosen + 0.5);
    cursor.setAttribute("x1", middle);
    cursor.setAttribute("x2", middle);
    cursor.setAttribute("visibility", "visible");
    const when = at.series.start + chosen * at.series.step;
    const lines = [make("b", "", at.series.range === "6h" ? moment(when) : at.series.range === "14d" ? `${day(when)} ${clock(when)}` : `${day(when)} ${day(when, true).slice(4)}`)];
    at.measure.columns.forEach(([, , name], which) => lines.push(make("div", "", `${name}: ${at.measure.show(at.columns[which][chosen])}`)));
    for (const mark of at.series.marks) if (Math.round((mark.when - at.series.start) / at.series.step) === chosen) lines.push(make("div", "", mark.words));
    tip.replaceChildren(...lines);
    tip.hidden = false;
    tip.style.left = `${Math.max(0, Math.min(at.width - tip.offsetWidth, middle + (middle > at.width / 2 ? -tip.offsetWidth - 12 : 12)))}px`;
  };
  const hide = () => { chosen = -1; tip.hidden = true; cursor.setAttribute("visibility", "hidden"); };
  picture.addEventListener("pointermove", (event) => {
    const box = picture.getBoundingClientRect();
    const share = (event.clientX - box.left - at.left) / (box.width - at.left - at.right);
    if (share >= 0 && share <= 1) show(Math.floor(share * at.points)); else hide();
  });
  picture.addEventListener("pointerleave", hide);
  picture.addEventListener("blur", hide);
  picture.addEventListener("keydown", (event) => {
    const steps = { ArrowLeft: -1, ArrowRight: 1, PageUp: -24, PageDown: 24 }[event.key];
    if (steps) show(chosen < 0 ? at.points - 1 : chosen + steps);
    else if (event.key === "Home") show(0);
    else if (event.key === "End") show(at.points - 1);
    else if (event.key === "Escape") hide();
    else return;
    event.preventDefault();
  });
}

function drawLegend(series, measure, columns, isArea) {
  const items = measure.columns.map(([, kind, name], which) => {
    const value = isArea ? columns[which].at(-1) : columns[which].reduce((sum, one) => sum + one, 0);
    return make("span", "", make("i", `key-${kind}`), `${name} ${measure.show(value)}`);
  });
  const evicted = sumOf(series.evictions);
  const failovers = sumOf(series.marks.filter((one) => one.kind === "failover").map((one) => one.count));
  if (evicted) items.push(make("span", "", make("i", "key-evicted"), `Evicted ${count(evicted)}`));
  if (failovers) items.push(make("span", "", make("i", "key-failover"), `Failovers ${count(failovers)}`));
  byId("legend").replaceChildren(...items);
}

const sumOf = (values) => values.reduce((sum, one) => sum + one, 0);

function chartLabel(series, measure, columns, isArea) {
  const told = measure.columns.map(([, , name], which) => `${name} ${measure.show(isArea ? columns[which].at(-1) : sumOf(columns[which]))}`);
  return `${measure.name} over ${RANGE_WORDS[series.range]}: ${told.join(", ")}. Arrow keys move through it.`;
}

function axis(value, measure) {
  if (measure.show === size) return value ? size(value).replace(".0 ", " ") : "0";
  return measure.show === seconds ? (value ? seconds(value).replace(".0 ", " ") : "0") : short(value);
}

// The next round number above, of which half is written on the axis as well: half a hit or half a byte is none.
function niceTop(most, measure) {
  const [isBinary, isCounted] = [measure.show === size, measure.show !== seconds];
  const base = isBinary ? 1024 ** Math.floor(Math.log2(most) / 10) : 1;
  const value = most / base;
  const power = 10 ** Math.floor(Math.log10(value));
  for (const step of [1, 1.5, 2, 3, 4, 5, 6, 8, 10]) {
    const top = step * power;
    if (value <= top && !(isCounted && base === 1 && top % 2)) return Math.max(isBinary ? 1 : 0, top) * base;
  }
  return most;
}
