// Pieces of the page. Names come from files that anybody may have written: text only ever becomes text here.

const byId = (id) => document.getElementById(id);

// make("td", "num", "12", child...): an element with a class, and strings or elements in it.
function make(tag, kind, ...children) {
  const element = document.createElement(tag);
  if (kind) element.className = kind;
  for (const child of children) {
    if (child !== null && child !== undefined) element.append(child instanceof Node ? child : visible(String(child)));
  }
  return element;
}

// Characters that do not show, or turn the rest of the line around, as escapes.
function visible(text) {
  return text.replace(/[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff]/g,
    (one) => "\\u" + one.codePointAt(0).toString(16).padStart(4, "0"));
}

function svg(tag, attributes, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes || {})) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

function fill(id, ...children) {
  const place = byId(id);
  const [top, left] = [place.scrollTop, place.scrollLeft];
  const focused = place.contains(document.activeElement) ? document.activeElement.dataset.key : null;
  place.replaceChildren(...children);
  [place.scrollTop, place.scrollLeft] = [top, left];
  if (focused) [...place.querySelectorAll("[data-key]")].find((one) => one.dataset.key === focused)?.focus();
}

function button(text, kind, act, label) {
  const made = make("button", kind, text);
  made.type = "button";
  made.dataset.key = label || text;
  if (label) made.setAttribute("aria-label", visible(label));
  made.addEventListener("click", act);
  return made;
}

// A group of buttons of which one is pressed.
function choice(id, options, chosen, choose) {
  fill(id, ...Object.entries(options).map(([value, text]) => {
    const made = button(text, "", () => choose(value));
    made.setAttribute("aria-pressed", String(value === chosen));
    return made;
  }));
}

function meter(share, kind, label) {
  const inner = make("i");
  inner.style.width = `${100 * Math.min(1, Math.max(0, share))}%`;
  const made = make("div", `meter ${kind || ""}`, inner);
  made.setAttribute("role", "img");
  made.setAttribute("aria-label", label);
  return made;
}

// columns: [title, kind, cell(row), sort key or undefined, kind of the heading]
function table(caption, columns, rows, order) {
  const head = make("tr", "", ...columns.map(([title, kind, , key]) => {
    const cell = make("th", kind, key && order ? button(title, "", () => order.choose(key), `sort by ${title}`) : title);
    cell.scope = "col";
    if (key && order && order.key === key) cell.setAttribute("aria-sort", order.up ? "ascending" : "descending");
    return cell;
  }));
  const body = rows.map((row) => {
    const line = make("tr", row.lineKind || "");
    for (const [, kind, cell] of columns) {
      const made = cell(row);
      line.append(made instanceof HTMLTableCellElement ? made : make("td", kind, made));
    }
    return line;
  });
  const made = make("table", "", make("caption", "unseen", caption), make("thead", "", head), make("tbody", "", ...body));
  return made;
}

function titled(element, text) { element.title = visible(text); return element; }

function nothing(title, text, code) {
  return make("div", "nothing", make("b", "", title), text || null, code ? make("code", "", code) : null);
}

function loading(label) {
  const made = make("div", "loading", make("i"), make("i"), make("i"), make("span", "unseen", label || "loading"));
  made.setAttribute("role", "status");
  return made;
}

function failed(error) { return nothing("This could not be read", error.message || String(error)); }

function entryLink(path, name) {
  const link = make("button", "link mono", name || path);
  link.type = "button";
  link.title = visible(path);
  link.dataset.key = path;
  link.addEventListener("click", () => { location.hash = "#/entry/" + encodeURIComponent(path); });
  return link;
}
