// Numbers, sizes and times as people read them.

const wholes = new Intl.NumberFormat("en");

function count(number) { return wholes.format(number); }

function counted(number, one, many) { return `${count(number)} ${number === 1 ? one : many || one + "s"}`; }

function size(bytes) {
  if (bytes < 1024) return `${bytes} B`;
  for (const unit of ["KiB", "MiB", "GiB"]) {
    bytes /= 1024;
    if (bytes < 1024) return `${bytes.toFixed(1)} ${unit}`;
  }
  return `${(bytes / 1024).toFixed(1)} TiB`;
}

function seconds(value) {
  if (value === null || value === undefined) return "unknown";
  if (value < 10) return `${value.toFixed(1)} s`;
  if (value < 120) return `${Math.round(value)} s`;
  if (value < 7200) return `${Math.round(value / 60)} min`;
  if (value < 172800) return `${Math.round(value / 3600)} h`;
  return `${Math.round(value / 86400)} d`;
}

function percent(share) { return `${(100 * share).toFixed(share > 0 && share < 0.1 ? 1 : 0)} %`; }

function ago(when, now) {
  if (!when) return "never";
  const past = Math.max(0, now - when);
  return past < 1 ? "now" : `${seconds(Math.floor(past)).replace(".0 s", " s")} ago`;
}

const two = (number) => String(number).padStart(2, "0");

function clock(when, withSeconds) {
  const date = new Date(when * 1000);
  return `${two(date.getHours())}:${two(date.getMinutes())}${withSeconds ? ":" + two(date.getSeconds()) : ""}`;
}

function day(when, withYear) {
  const date = new Date(when * 1000);
  const month = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"][date.getMonth()];
  return withYear ? `${month} ${date.getFullYear()}` : `${date.getDate()} ${month}`;
}

function moment(when) { return `${day(when)} ${clock(when, true)}`; }

function short(value) {
  for (const [unit, factor] of [["G", 1e9], ["M", 1e6], ["k", 1e3]]) {
    if (value >= factor) return `${+(value / factor).toFixed(1)}${unit}`;
  }
  return String(+value.toFixed(2));
}
