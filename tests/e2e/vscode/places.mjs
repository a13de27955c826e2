// Places to complete at. Which of them the pair has something to say about is asked of the daemon: no test depends on
// the words of a certain pair.
const place = (before, after, key = before.at(-1)) => ({ before, after, key });
const DEFS = "import os\nimport sys\n\n\n";

// Texts of several lines.
export const LONG = [
  place(`${DEFS}def read_lines(path):\n    `, "\n\n\nx = 1\n"),
  place(`${DEFS}def area(shape):\n    `, "\n\n\nprint(area(1))\n"),
  place(`${DEFS}def copy(source, target):\n    `, "\n\n\nx = 1\n"),
  place(`${DEFS}class Stack:\n    def __init__(self):\n        `, "\n\n\nx = 1\n"),
  place(`${DEFS}def main():\n    `, "\n\n\nmain()\n"),
];

// Texts that begin with a word of three letters at least.
export const WORDS = [
  place("def add(first, second):\n    return first + second\n\n\ndef subtract(first, second):\n    ", "\n\n\nx = 1\n"),
  place(
    "class Stack:\n    def __init__(self):\n        self.items = []\n\n    def pop(self):\n        ",
    "\n\n\nx = 1\n",
  ),
  place("def kind(value):\n    if isinstance(value, int):\n        return 1\n    ", "\n\n\nx = 1\n"),
  place("def total(values):\n    result = 0\n    for value in values:\n        ", "\n    return result\n"),
];

// What else somebody could type where such a text is being written.
export const OTHERWISE = ["zq = ", "for zq in ", "import ", "return zq."];

// An emoji in the line of the cursor, and lines that end in CRLF.
export const PARTY = [
  'def party(guest, cake):\r\n    print("🎉", guest)\r\n    print("🎉", ',
  'def party(guest, cake):\r\n    cheer = "🎉"\r\n    shout = "🎉🎉" + ',
  'PARTS = ["🎈"]\r\n\r\n\r\ndef party(guest):\r\n    if guest == "🎉": ',
  'PARTS = ["🎈"]\r\nNAMES = {"🎉": ',
].map((before) => place(before, "\r\n\r\n\r\nx = 1\r\n"));

/** The place of these whose text is the longest, with the `text` that the daemon completes there. */
export async function choose(daemon, places) {
  const chosen = [];
  for (const one of places) {
    const text = await daemon.complete(one.before, one.after);
    const fits = places !== WORDS || /^[a-z_]{3}./i.test(text);
    if (fits && text.trim()) chosen.push({ ...one, text });
  }
  if (!chosen.length) throw new Error("the pair has nothing to say at any of these places: add some to places.mjs");
  return chosen.sort((a, b) => b.text.length - a.text.length)[0];
}
