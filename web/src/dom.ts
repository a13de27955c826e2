/** A short way to make elements. Text only ever goes in as text. */

type Child = Node | string;

export function element(tag: string, attributes: Record<string, string> = {}, ...children: Child[]): HTMLElement {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

/** The page's own element of an id; the page and this script are one thing, so it is there. */
export function part<Kind extends HTMLElement = HTMLElement>(id: string): Kind {
  const found = document.getElementById(id);
  if (!found) throw new Error(`The page has no #${id}: it and its script are of two builds.`);
  return found as Kind;
}

/** A size by a custom property, which a content security policy lets a script set. */
export function size(target: HTMLElement, name: string, value: number): HTMLElement {
  target.style.setProperty(name, String(value));
  return target;
}
