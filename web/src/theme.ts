/** The button for the theme: light, dark, or the system's. */

import { part } from "./dom.ts";

const PLACE = "codespec-theme";
const NEXT: Record<string, string> = { system: "light", light: "dark", dark: "system" };

export function startTheme(): void {
  const button = part("theme");
  const use = (theme: string): void => {
    document.documentElement.dataset["theme"] = theme;
    button.setAttribute("aria-label", `Colours: ${theme}`);
    button.title = `Colours: ${theme}`;
  };
  const kept = localStorage.getItem(PLACE) ?? "";
  use(kept in NEXT ? kept : "system");
  button.addEventListener("click", () => {
    const theme = NEXT[document.documentElement.dataset["theme"] ?? ""] ?? "system";
    localStorage.setItem(PLACE, theme);
    use(theme);
  });
}
