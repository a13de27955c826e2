/**
 * JupyterLab's inline completer asks codespec, through the server extension of the same package.
 *
 * JupyterLab loads an extension as a container of webpack's module federation: an object with `init`, which gets the
 * shared modules, and `get`, which returns a factory of the module. This one is written by hand, so nothing is built.
 */
(() => {
  const NAME = "codespec-jupyterlab";
  let shared = {};

  /** Returns a module that JupyterLab shares with its extensions. */
  async function load(name) {
    const [version] = Object.values(shared[name]);
    return (await version.get())();
  }

  /** Returns the cells around the cursor: those of a notebook, or one for another document. */
  function cellsOf({ content }, { text, offset }) {
    const active = { kind: "code", before: text.slice(0, offset), after: text.slice(offset) };
    if (!content?.widgets || content.activeCellIndex === undefined) return { above: [], active, below: [] };
    const cells = content.widgets.map(({ model }) => ({ kind: model.type, text: model.sharedModel.getSource() }));
    const index = content.activeCellIndex;
    active.kind = cells[index].kind;
    return { above: cells.slice(0, index), active, below: cells.slice(index + 1) };
  }

  class Provider {
    identifier = "codespec";
    name = "codespec";

    constructor({ ServerConnection }, { URLExt }) {
      this.connection = ServerConnection;
      this.settings = ServerConnection.makeSettings();
      this.url = URLExt.join(this.settings.baseUrl, "codespec/complete");
    }

    /** Returns the text for the cursor, or nothing. Throws with the server's sentence if that fails. */
    async fetch(request, { widget }) {
      const language = widget.content?.model?.defaultKernelLanguage ?? "";
      const body = { path: widget.context?.path ?? "", language, ...cellsOf(widget, request) };
      const init = { method: "POST", body: JSON.stringify(body) };
      const reply = await this.connection.makeRequest(this.url, init, this.settings);
      const { text, message } = await reply.json();
      if (!reply.ok) throw new Error(message);
      return { items: text ? [{ insertText: text }] : [] };
    }
  }

  async function plugin() {
    const [completer, services, coreutils] = await Promise.all(
      ["@jupyterlab/completer", "@jupyterlab/services", "@jupyterlab/coreutils"].map(load),
    );
    return {
      id: `${NAME}:provider`,
      description: "Ghost text from codespec",
      autoStart: true,
      requires: [completer.ICompletionProviderManager],
      activate: (app, manager) => manager.registerInlineProvider(new Provider(services, coreutils)),
    };
  }

  globalThis._JUPYTERLAB ??= {};
  globalThis._JUPYTERLAB[NAME] = {
    init: (scope) => void (shared = scope),
    get: async (module) => {
      if (module !== "./extension") throw new Error(`${NAME} has no module ${module}.`);
      const loaded = { __esModule: true, default: await plugin() };
      return () => loaded;
    },
  };
})();
