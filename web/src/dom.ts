/** Creates elements. Text is always inserted as text, never as HTML. */

type Child = Node | string;

export function element(tag: string, attributes: Record<string, string> = {}, ...children: Child[]): HTMLElement {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

/** Returns the page's element with an id, which always exists because page and script are built together. */
export function part<Kind extends HTMLElement = HTMLElement>(id: string): Kind {
  const found = document.getElementById(id);
  if (!found) throw new Error(`The page has no #${id}: it and its script are of two builds.`);
  return found as Kind;
}

/** Sets a size as a custom property, because the content security policy forbids inline styles. */
export function size(target: HTMLElement, name: string, value: number): HTMLElement {
  target.style.setProperty(name, String(value));
  return target;
}
