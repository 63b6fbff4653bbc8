// Light, dark, or what the reader's system says.

const KEY = "everstream-theme";
const ORDER = ["auto", "light", "dark"];
export const SIGNS = { auto: "◐", light: "☀", dark: "☾" };

export function theme() {
  try {
    const kept = localStorage.getItem(KEY);
    return ORDER.includes(kept) ? kept : "auto";
  } catch {
    return "auto"; // A browser that keeps nothing for us: the system's choice is as good.
  }
}

export function wear(chosen) {
  document.documentElement.dataset.theme = chosen;
  try {
    localStorage.setItem(KEY, chosen);
  } catch {
    // It holds until the page is closed.
  }
}

export const next = (chosen) => ORDER[(ORDER.indexOf(chosen) + 1) % ORDER.length];
