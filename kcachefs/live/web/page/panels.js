// The panels: each draws what it is given, and says so where there is nothing.

const STATES = { served: "good", unsupervised: "warn", silent: "bad", dead: "bad", "at rest": "" };

function drawState(glance) {
  const head = glance.headline;
  byId("place").textContent = visible(head.mountpoint);
  const chip = byId("state");
  chip.className = `chip ${STATES[head.state] || ""}`;
  chip.textContent = { silent: "does not answer", dead: "daemon is gone" }[head.state] || head.state;
  byId("overview").classList.toggle("stale", head.state === "silent" || head.state === "dead");
  fill("concerns", ...head.concerns.map((one) => make("li", one.grave ? "grave" : "", one.words)));
}

function drawTiles(glance, spanWords) {
  const { headline: head } = glance;
  const week = head.week;
  if (!head.total) {
    fill("tiles", make("div", "tile", nothing("No numbers yet", "The daemon has not answered since this page was opened.")));
    return;
  }
  const total = head.total;
  const uses = total.hits + total.misses;
  const share = head.max_bytes ? head.used_bytes / head.max_bytes : 0;
  const worked = week.seconds_saved + week.seconds_compiled;
  fill("tiles",
    tile("saved", `Compiling not repeated ${spanWords}`, seconds(week.seconds_saved), "",
      meter(worked ? week.seconds_saved / worked : 0, "saved", `${percent(worked ? week.seconds_saved / worked : 0)} of the compiling was not repeated`),
      worked ? `${seconds(week.seconds_compiled)} of compiling done`
        : week.hits + week.misses ? "how long compiling took is not known" : "nothing was compiled or reused yet"),
    tile("rate", head.counted_since ? "Hit rate since the reset" : "Hit rate", uses ? percent(total.hit_rate) : "–", "",
      meter(total.hit_rate, "", `hit rate ${percent(total.hit_rate)}`),
      `${counted(total.hits, "hit")}, ${counted(total.misses, "miss", "misses")}, ${size(total.bytes_served)} served`),
    tile("size", "On disk", size(head.used_bytes), head.max_bytes ? `of ${size(head.max_bytes)}` : "",
      meter(share, share > 0.95 ? "warn" : "", `${percent(share)} of the quota is used`),
      `${size(head.bytes_saved)} saved by compression and sharing`),
    tile("entries", "Entries", count(total.entries), `in ${counted(Object.keys(glance.namespaces).length, "namespace")}`,
      meter(week.evictions ? 1 - week.remade / week.evictions : 1, week.remade ? "warn" : "", week.remade ? "some entries were compiled again after an eviction" : "no entry was compiled again after an eviction"),
      week.evictions ? `${counted(week.evictions, "eviction")} ${spanWords}, ${count(week.remade)} compiled again` : `no evictions ${spanWords}`));
}

function tile(id, name, value, small, bar, more) {
  const made = make("div", "tile", make("div", "tile-name", name), make("div", "tile-value", value, small ? make("small", "", ` ${small}`) : null), bar, make("div", "tile-more", more));
  made.dataset.tile = id;
  return made;
}

function drawNamespaces(glance) {
  const rows = Object.entries(glance.namespaces).map(([name, numbers]) => ({ name, ...numbers }));
  if (!rows.length) return fill("namespaces", nothing("No namespace is in use yet", "Each framework gets a folder of its own as soon as it writes something."));
  if (rows.length > 1) rows.push({ name: "total", ...glance.headline.total, lineKind: "total" });
  fill("namespaces", table("Namespaces", [
    ["Namespace", "", (row) => make("span", "", row.name)],
    ["Entries", "num", (row) => count(row.entries)],
    ["Size", "num wide-only", (row) => size(row.plain_bytes)],
    ["On disk", "num", (row) => size(row.stored_bytes)],
    ["Ratio", "num wide-only", (row) => `${row.compression_ratio.toFixed(1)}×`],
    ["Hits", "num", (row) => count(row.hits)],
    ["Misses", "num", (row) => count(row.misses)],
    ["Served", "num wide-only", (row) => size(row.bytes_served)],
    ["Evicted", "num wide-only", (row) => count(row.evictions)],
    ["Last use", "num wide-only", (row) => ago(row.last_used, glance.now)],
    ["Hit rate", "num", (row) => make("div", "share", make("span", "", percent(row.hit_rate)), meter(row.hit_rate, "wide-only", `hit rate ${percent(row.hit_rate)}`))],
  ], rows));
}

function knownSeconds(known, unknown, all) {
  if (unknown && unknown >= all) return "?";
  return seconds(known) + (unknown ? "+" : "");
}

function drawRuns(glance, why) {
  if (!glance.runs.length) return fill("runs", nothing("No run yet", "A run is a program that uses the mount, with everything it starts."));
  fill("runs", table("Runs, the newest first", [
    ["Command", "long", (row) => {
      const cell = make("td", "long", make("span", "mono", row.argv || `process ${row.pid}`), make("span", "under", `run ${row.run} · user ${row.uid} · ${ago(row.started, glance.now)}`));
      return titled(cell, row.argv);
    }],
    ["Hits", "num", (row) => count(row.hits)],
    ["Misses", "num", (row) => row.misses && why ? button(count(row.misses), "link", () => why(row.run), `Why run ${row.run} had ${counted(row.misses, "miss", "misses")}`) : count(row.misses)],
    ["Compiled", "num wide-only", (row) => knownSeconds(row.seconds_compiled, row.unknown_compiled, row.misses)],
    ["Saved", "num", (row) => knownSeconds(row.seconds_saved, row.unknown_saved, row.hits)],
  ], glance.runs));
}

function drawCauses(causes) {
  if (!causes.rows.length) {
    const run = causes.run;
    return fill("causes", nothing("Nothing had to be compiled", run ? "That run found everything it looked for, or made nothing that can be read." : "Misses are explained here: each by the nearest kernel or graph that was there before."));
  }
  const items = [];
  if (causes.run) items.push(titled(make("p", "under mono", `run ${causes.run.run}: ${causes.run.argv || "process " + causes.run.pid}`), causes.run.argv));
  for (const row of causes.rows) {
    const names = make("p", "names");
    row.paths.slice(0, 4).forEach((path, at) => names.append(at ? ", " : "", entryLink(path, nameOf(row, at, path))));
    if (row.entries > 4) names.append(` and ${count(row.entries - 4)} more`);
    items.push(make("div", "cause",
      make("div", "cause-head", make("span", `kind ${row.kind}`, row.kind), make("span", "dim", row.counts + (row.seconds !== null ? ` · ${seconds(row.seconds)}` : ""))),
      make("p", "", (row.certain ? "" : "likely: ") + row.words), names));
  }
  if (causes.total > causes.explained) items.push(make("p", "dim", `The newest ${count(causes.explained)} of ${count(causes.total)} are explained.`));
  for (const text of causes.advice) items.push(make("p", "advice", text));
  fill("causes", ...items);
}

function nameOf(row, at, path) {
  const names = row.names.split(", ");
  return row.entries === names.length && !row.names.includes(" more") ? names[at] : path.split("/").slice(-1)[0].slice(0, 12);
}

function drawTop(filling, which) {
  const rows = which === "cost" ? filling.costliest : filling.biggest;
  if (!rows.length) return fill("top", nothing(which === "cost" ? "No cost is known yet" : "Nothing is stored yet", which === "cost" ? "How long an entry took to make is known once somebody compiles through the mount." : ""));
  fill("top", make("ul", "rank", ...rows.map((row) => make("li", "", entryLink(row.path, row.name),
    make("span", "", which === "cost" ? seconds(row.cost) : size(row.bytes)),
    make("span", "under", `${row.namespace} · ${counted(row.hits, "hit")}${row.pinned ? " · pinned" : ""}`),
    make("span", "under", which === "cost" ? size(row.bytes) : row.cost === null ? "" : seconds(row.cost))))));
}

const ORDERS = { name: (row) => row.name, registers: (row) => row.registers, shared: (row) => row.shared, stack: (row) => row.stack, warps: (row) => row.warps, bytes: (row) => row.bytes, hits: (row) => row.hits, seconds: (row) => row.seconds, used: (row) => row.used };

function drawKernels(kernels, order, search, now) {
  if (!kernels.rows.length) {
    return fill("kernels", search ? nothing("No kernel has that in its name") : nothing("No kernel yet", "Triton's kernels are listed here with the GPU resources that they use."));
  }
  const key = ORDERS[order.key];
  const rows = [...kernels.rows].sort((a, b) => {
    const [x, y] = [key(a), key(b)];
    const way = x === y ? 0 : x === null ? -1 : y === null ? 1 : x < y ? -1 : 1;
    return order.up ? way : -way;
  });
  const number = (value) => value === null ? "" : count(value);
  const made = table("Kernels", [
    ["Kernel", "long", (row) => make("td", "long", entryLink(row.path, row.name), make("span", "under", [row.differs, row.source, row.model && row.model.split("/").pop()].filter(Boolean).join(" · "))), "name"],
    ["GPU", "num wide-only", (row) => row.arch],
    ["Warps", "num wide-only", (row) => number(row.warps), "warps"],
    ["Registers", "num", (row) => number(row.registers), "registers"],
    ["Stack", "num wide-only", (row) => number(row.stack), "stack"],
    ["Shared", "num wide-only", (row) => row.shared === null ? "" : size(row.shared), "shared"],
    ["On disk", "num wide-only", (row) => size(row.bytes), "bytes"],
    ["Hits", "num", (row) => number(row.hits), "hits"],
    ["Cost", "num", (row) => row.seconds === null ? "?" : seconds(row.seconds), "seconds"],
    ["Used", "num wide-only", (row) => ago(row.used, now), "used"],
  ], rows, order);
  const notes = [];
  if (kernels.total > rows.length) notes.push(make("p", "dim", `${count(rows.length)} of ${count(kernels.total)}: those used last, the costliest, the largest and the most used. Search for others.`));
  if (!kernels.complete) notes.push(make("p", "dim", "Reading the others takes a while; they appear as they are read."));
  fill("kernels", made, ...notes);
}

function drawEvents(glance) {
  if (!glance.events.length) return fill("events", nothing("Nothing happened yet", "Evictions, damage, failovers and reloads are listed here."));
  fill("events", table("Events, the newest first", [
    ["When", "wide-only", (row) => make("span", "dim", moment(row.when))],
    ["What", "", (row) => make("span", `kind ${row.kind}`, row.kind)],
    ["Entry", "long", (row) => titled(make("td", "long", row.path ? make("span", "mono", row.path) : make("span", "", row.detail), row.path && row.detail ? make("span", "under", row.detail) : null), row.path)],
  ], glance.events));
}

function drawUsers(glance, spanWords) {
  const rows = glance.headline.week.users;
  if (!rows.length) return fill("users", nothing("Nobody used it", `There was no hit and no miss ${spanWords}.`));
  fill("users", table(`Users ${spanWords}`, [
    ["User", "", (row) => row.name],
    ["Hits", "num", (row) => count(row.hits)],
    ["Misses", "num", (row) => count(row.misses)],
    ["Compiled", "num wide-only", (row) => seconds(row.seconds_compiled)],
    ["Saved", "num", (row) => seconds(row.seconds_saved)],
  ], rows));
}

function drawMounts(told, shown, choose, now) {
  if (!told.mounts.length) return fill("mounts", nothing("No mount", "", "kcachefs mount"));
  fill("mounts", table("Mounts on this host", [
    ["Mount", "long", (row) => {
      const name = told.shown.includes(row.mountpoint) && row.mountpoint !== shown ? button(row.mountpoint, "link mono", () => choose(row.mountpoint)) : make("span", "mono", row.mountpoint);
      return make("td", "long", name, make("span", "under", row.own ? `${row.engine} · ${row.policy} · up ${seconds(Math.max(0, now - row.started))}` : row.state));
    }],
    ["State", "", (row) => make("span", `chip ${STATES[row.state] || ""}`, row.own ? row.state : "not yours")],
    ["On disk", "num wide-only", (row) => row.used_bytes === null ? "" : `${size(row.used_bytes)} of ${size(row.max_bytes)}`],
    ["Hit rate", "num", (row) => row.hit_rate === null ? "" : percent(row.hit_rate)],
  ], told.mounts));
}
