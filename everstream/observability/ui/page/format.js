// Figures in readable form. An unknown value is a dash, never a zero.

export const UNKNOWN = "–";
const known = (value) => value !== null && value !== undefined && Number.isFinite(value);

/** 82,310 → "82.3 k": three digits and a unit, so that columns stay narrow. */
export function short(value) {
  if (!known(value)) return UNKNOWN;
  const units = ["", " k", " M", " G", " T"];
  let size = Math.abs(value);
  let unit = 0;
  while (size >= 999.5 && unit < units.length - 1) {
    size /= 1000;
    unit += 1;
  }
  const places = size >= 99.95 || (unit === 0 && Number.isInteger(value)) ? 0 : size >= 9.995 ? 1 : 2;
  const text = size.toFixed(unit === 0 && size < 10 && size >= 1 ? Math.min(places, 1) : places);
  return `${value < 0 ? "−" : ""}${text}${units[unit]}`;
}

export const rate = (value) => (known(value) ? `${short(value)}/s` : UNKNOWN);
export const count = (value) => (known(value) ? Math.round(value).toLocaleString("en") : UNKNOWN);
export const percent = (share) => (known(share) ? `${Math.round(share * 100)} %` : UNKNOWN);

export function bytes(value) {
  if (!known(value)) return UNKNOWN;
  const units = ["B", "kB", "MB", "GB", "TB", "PB"];
  let unit = 0;
  let size = value;
  while (size >= 999.5 && unit < units.length - 1) {
    size /= 1000;
    unit += 1;
  }
  return `${unit === 0 || size >= 99.95 ? size.toFixed(0) : size.toFixed(1)} ${units[unit]}`;
}

/** A duration given in seconds: "3.2 ms", "410 ms", "2.31 s", "4 min 10 s", "3 h 20 min". */
export function duration(seconds) {
  if (!known(seconds)) return UNKNOWN;
  if (seconds === 0) return "0 s";
  if (seconds < 0.9995) {
    const ms = seconds * 1000;
    return `${ms < 0.995 ? ms.toFixed(2) : ms < 9.95 ? ms.toFixed(1) : ms.toFixed(0)} ms`;
  }
  if (seconds < 59.95) return `${seconds < 9.995 ? seconds.toFixed(2) : seconds.toFixed(1)} s`;
  const whole = Math.round(seconds);
  if (whole < 3600) return joined(Math.floor(whole / 60), "min", whole % 60, "s");
  if (whole < 86400) return joined(Math.floor(whole / 3600), "h", Math.floor((whole % 3600) / 60), "min");
  return joined(Math.floor(whole / 86400), "d", Math.floor((whole % 86400) / 3600), "h");
}

/** A configured duration: "5 s", not "5.00 s". */
export const chosen = (seconds) => duration(seconds).replace(/\.0+(?= )|(\.\d*?)0+(?= )/, "$1");

const joined = (large, unit, small, smaller) => `${large} ${unit}${small ? ` ${small} ${smaller}` : ""}`;
export const milliseconds = (value) => (known(value) ? duration(value / 1000) : UNKNOWN);

/** Seconds since 1970 → 14:03:07, in the reader's own time zone. */
export const clock = (at) => (known(at) ? new Date(at * 1000).toLocaleTimeString("en-GB") : UNKNOWN);

export function moment(at) {
  if (!known(at)) return UNKNOWN;
  const day = new Date(at * 1000);
  return `${day.toLocaleDateString("sv-SE")} ${day.toLocaleTimeString("en-GB")}`;
}

/** How long ago, coarsely: it is read at a glance. */
export function ago(seconds) {
  if (!known(seconds)) return UNKNOWN;
  if (seconds < 1) return "just now";
  if (seconds < 60) return `${Math.floor(seconds)} s ago`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ago`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h ago`;
  return `${Math.floor(seconds / 86400)} d ago`;
}

export const plural = (number, one, many = `${one}s`) => `${count(number)} ${number === 1 ? one : many}`;
