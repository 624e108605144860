// Light or dark: the reader's choice, else the theme of the notebook or editor around the page, else the system's.

import { buildRamps } from "./colours.js";
import { root } from "./dom.js";
import { scheduleAddress } from "./state.js";

const prefersDark = matchMedia("(prefers-color-scheme: dark)");
const LIGHT_TEXT_SUM = 384; // of red, green and blue: lighter text means a dark background

// The theme of the page that embeds this one; null if there is none or it has another origin.
function embedderTheme() {
  try {
    const body = window.frameElement?.ownerDocument?.body;
    if (!body) return null;
    if (/vscode-(dark|high-contrast)(?!-light)/.test(body.className)) return "dark";
    if (/vscode-/.test(body.className)) return "light";
    if (body.dataset.jpThemeLight) return body.dataset.jpThemeLight === "false" ? "dark" : "light";
    const textColour = getComputedStyle(window.frameElement.parentElement).color;
    const rgb = textColour.match(/\d+/g)?.slice(0, 3).map(Number);
    if (rgb) return rgb[0] + rgb[1] + rgb[2] > LIGHT_TEXT_SUM ? "dark" : "light";
  } catch {
    return null;
  }
  return null;
}

export function startTheme(requested, repaint) {
  if (requested === "dark" || requested === "light") root.dataset.chosen = requested;
  const apply = () => {
    root.dataset.theme = root.dataset.chosen || embedderTheme() || (prefersDark.matches ? "dark" : "light");
    buildRamps();
  };
  apply();
  prefersDark.addEventListener("change", () => {
    apply();
    repaint();
  });
}

export function toggleTheme(repaint) {
  const theme = root.dataset.theme === "dark" ? "light" : "dark";
  root.dataset.chosen = theme;
  root.dataset.theme = theme;
  buildRamps();
  repaint();
  scheduleAddress();
}
