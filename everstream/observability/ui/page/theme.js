// Light, dark, or the system's choice.

const KEY = "everstream-theme";
const ORDER = ["auto", "light", "dark"];
export const SIGNS = { auto: "◐", light: "☀", dark: "☾" };

export function theme() {
  try {
    const kept = localStorage.getItem(KEY);
    return ORDER.includes(kept) ? kept : "auto";
  } catch {
    return "auto"; // No storage in this browser: use the system's choice.
  }
}

export function wear(chosen) {
  document.documentElement.dataset.theme = chosen;
  try {
    localStorage.setItem(KEY, chosen);
  } catch {
    // It lasts until the page is closed.
  }
}

export const next = (chosen) => ORDER[(ORDER.indexOf(chosen) + 1) % ORDER.length];
