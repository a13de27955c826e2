#!/usr/bin/env node
"use strict";

const fs = require("fs");
const { join, extname } = require("path");

/**
 * A template: text with {{ names }} in it, and blocks that repeat.
 */
class Template {
  static cache = new Map();

  constructor(source, { strict = false, filters = {} } = {}) {
    this.source = source;
    this.strict = strict;
    this.filters = { upper: (text) => text.toUpperCase(), trim: (text) => text.trim(), ...filters };
    this.parts = this.#parse(source);
  }

  static load(file, options) {
    const known = Template.cache.get(file);
    if (known && !options) {
      return known;
    }
    const made = new Template(fs.readFileSync(file, "utf8"), options);
    Template.cache.set(file, made);
    return made;
  }

  #parse(source) {
    const pattern = /\{\{\s*(#|\/)?([\w.]+)((?:\s*\|\s*\w+)*)\s*\}\}/g;
    const root = { kind: "block", name: null, parts: [] };
    const open = [root];
    let last = 0;
    for (let match = pattern.exec(source); match !== null; match = pattern.exec(source)) {
      const [whole, mark, name, pipes] = match;
      const inner = open[open.length - 1];
      if (match.index > last) {
        inner.parts.push({ kind: "text", text: source.slice(last, match.index) });
      }
      last = match.index + whole.length;
      if (mark === "#") {
        const block = { kind: "block", name, parts: [] };
        inner.parts.push(block);
        open.push(block);
      } else if (mark === "/") {
        if (open.length === 1 || inner.name !== name) {
          throw new SyntaxError(`"${name}" ends here but '${inner.name}' is open`);
        }
        open.pop();
      } else {
        const filters = pipes.split("|").map((filter) => filter.trim()).filter(Boolean);
        inner.parts.push({ kind: "name", name, filters });
      }
    }
    root.parts.push({ kind: "text", text: source.slice(last) });
    return root.parts;
  }

  render(values, parts = this.parts) {
    let out = "";
    for (const part of parts) {
      switch (part.kind) {
        case "text":
          out += part.text;
          break;
        case "name": {
          const value = this.lookUp(values, part.name);
          out += part.filters.reduce((text, filter) => this.filters[filter](text), String(value ?? ""));
          break;
        }
        default: {
          const items = this.lookUp(values, part.name);
          const list = Array.isArray(items) ? items : items ? [items] : [];
          out += list.map((item, index) => this.render({ ...values, item, index }, part.parts)).join("");
        }
      }
    }
    return out;
  }

  lookUp(values, name) {
    let value = values;
    for (const key of name.split(".")) {
      if (value === null || value === undefined || !(key in Object(value))) {
        if (this.strict) {
          throw new ReferenceError("nothing is called " + name);
        }
        return undefined;
      }
      value = value[key];
    }
    return typeof value === "function" ? value.call(values) : value;
  }
}

async function* walk(folder, depth = 0) {
  for (const entry of await fs.promises.readdir(folder, { withFileTypes: true })) {
    const file = join(folder, entry.name);
    if (entry.isDirectory() && depth < 5) {
      yield* walk(file, depth + 1);
    } else if (extname(file) === ".tmpl") {
      yield file;
    }
  }
}

async function main([folder = ".", ...names]) {
  const values = Object.fromEntries(names.map((name) => name.split("=", 2)));
  const results = [];
  for await (const file of walk(folder)) {
    try {
      results.push({ file, text: Template.load(file).render(values) });
    } catch (problem) {
      console.error(`${file}: ${problem.message}`);
      process.exitCode = 1;
    }
  }
  const total = results.reduce((sum, { text }) => sum + text.length, 0);
  console.log(`${results.length} files, ${total} characters`);
  return results;
}

module.exports = { Template, walk };

if (require.main === module) {
  main(process.argv.slice(2)).then(
    (results) => results.length || console.warn("no templates found"),
    (problem) => {
      console.error(problem);
      process.exit(2);
    },
  );
}
