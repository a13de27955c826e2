// A store of values that change, with views that follow.
import { EventEmitter } from "node:events";
import type { Readable } from "node:stream";
import * as path from "path";

export type Listener<T> = (value: T, before: T | undefined) => void;
export type Unsubscribe = () => void;
type Keys<T> = { [K in keyof T]: T[K] extends (...rest: unknown[]) => unknown ? never : K }[keyof T];

export interface Options {
  readonly name: string;
  depth?: number;
  onError?(problem: Error, where: string): void;
}

export enum Level {
  Debug = 0,
  Info = 1 << 1,
  Error = "error".length,
}

const DEFAULTS: Required<Omit<Options, "onError">> = {
  name: "store",
  depth: 3,
};

/** One value and those who want to know when it changes. */
export class Cell<T> {
  private readonly listeners = new Set<Listener<T>>();
  #value: T;

  constructor(value: T, protected readonly options: Partial<Options> = {}) {
    this.#value = value;
  }

  get value(): T {
    return this.#value;
  }

  set value(next: T) {
    const before = this.#value;
    if (Object.is(before, next)) {
      return;
    }
    this.#value = next;
    for (const listener of [...this.listeners]) {
      try {
        listener(next, before);
      } catch (problem) {
        this.options.onError?.(problem as Error, `listener of ${this.options.name ?? "a cell"}`);
      }
    }
  }

  subscribe(listener: Listener<T>, now = false): Unsubscribe {
    this.listeners.add(listener);
    if (now) {
      listener(this.#value, undefined);
    }
    return () => this.listeners.delete(listener);
  }

  map<U>(change: (value: T) => U): Cell<U> {
    const view = new Cell(change(this.#value), { name: `${this.options.name}.map` });
    this.subscribe((value) => {
      view.value = change(value);
    });
    return view;
  }

  static all<A, B>(one: Cell<A>, other: Cell<B>): Cell<readonly [A, B]> {
    const both = new Cell<readonly [A, B]>([one.value, other.value]);
    one.subscribe((value) => (both.value = [value, other.value]));
    other.subscribe((value) => (both.value = [one.value, value]));
    return both;
  }
}

export abstract class Source<T extends object> extends EventEmitter {
  protected abstract load(key: string): Promise<T | null>;
  private readonly known = new Map<string, Cell<T | null>>();

  async get(key: string, { fresh = false }: { fresh?: boolean } = {}): Promise<Cell<T | null>> {
    let cell = this.known.get(key);
    if (!cell || fresh) {
      const value = await this.load(key);
      cell = cell ?? new Cell<T | null>(value, { ...DEFAULTS, name: key });
      cell.value = value;
      this.known.set(key, cell);
      this.emit("loaded", key, value !== null);
    }
    return cell;
  }

  *entries(): IterableIterator<[string, T]> {
    for (const [key, cell] of this.known) {
      if (cell.value !== null) yield [key, cell.value];
    }
  }
}

interface User {
  id: number;
  name: string;
  tags: string[];
}

export class UserSource extends Source<User> {
  constructor(private readonly folder: string, private readonly read: (file: string) => Promise<Readable>) {
    super();
  }

  protected async load(key: string): Promise<User | null> {
    const file = path.join(this.folder, `${key}.json`);
    const chunks: Buffer[] = [];
    for await (const chunk of await this.read(file)) {
      chunks.push(chunk as Buffer);
    }
    const text = Buffer.concat(chunks).toString("utf8");
    if (!/^\s*\{/.test(text)) {
      return null;
    }
    const { id, name, tags = [] } = JSON.parse(text) as Partial<User>;
    return id === undefined || !name ? null : { id, name, tags };
  }
}

export function group<T, K extends string>(items: readonly T[], by: (item: T) => K): Record<K, T[]> {
  return items.reduce(
    (groups, item) => {
      const key = by(item);
      (groups[key] ??= []).push(item);
      return groups;
    },
    {} as Record<K, T[]>,
  );
}

export const describe = (user: User, level: Level = Level.Info): string => {
  switch (level) {
    case Level.Debug:
      return JSON.stringify(user, null, 2);
    case Level.Info: {
      const tags = user.tags.length > 0 ? ` (${user.tags.join(", ")})` : "";
      return `${user.name}${tags}`;
    }
    default:
      throw new RangeError("no such level: " + level);
  }
};

export default async function main(folder: string): Promise<void> {
  const users = new UserSource(folder, async (file) => (await import("node:fs")).createReadStream(file));
  const cell = await users.get("first", { fresh: true });
  const stop = cell.subscribe((user) => console.log(user ? describe(user) : "nobody"), true);
  setTimeout(stop, 1_000);
}
