// Light or dark: the reader's own switch, else what the place says that shows the page, else the system.

import { mixColours } from "./colours.js";
import { root } from "./dom.js";
import { keepAddress } from "./state.js";

const wish = matchMedia("(prefers-color-scheme: dark)");

// A notebook or an editor around the page has a theme of its own; frames of other origins do not tell.
function fromAround() {
  try {
    const place = window.frameElement?.ownerDocument?.body;
    if (!place) return null;
    if (/vscode-(dark|high-contrast)(?!-light)/.test(place.className)) return "dark";
    if (/vscode-/.test(place.className)) return "light";
    if (place.dataset.jpThemeLight) return place.dataset.jpThemeLight === "false" ? "dark" : "light";
    const shades = getComputedStyle(window.frameElement.parentElement).color.match(/\d+/g)?.slice(0, 3).map(Number);
    if (shades) return shades[0] + shades[1] + shades[2] > 384 ? "dark" : "light";
  } catch {
    return null;
  }
  return null;
}

export function startTheme(asked, repaint) {
  if (asked === "dark" || asked === "light") root.dataset.chosen = asked;
  const follow = () => {
    root.dataset.theme = root.dataset.chosen || fromAround() || (wish.matches ? "dark" : "light");
    mixColours();
  };
  follow();
  wish.addEventListener("change", () => { follow(); repaint(); });
}

export function turnTheme(repaint) {
  root.dataset.theme = root.dataset.chosen = root.dataset.theme === "dark" ? "light" : "dark";
  mixColours();
  repaint();
  keepAddress();
}

export const still = () => matchMedia("(prefers-reduced-motion: reduce)").matches;
