import React, { useCallback, useEffect, useMemo, useRef, useState } from "react";
import type { ReactNode } from "react";

type Row = { id: number; name: string; size: number; hidden?: boolean };

interface TableProps<T> {
  rows: T[];
  title: ReactNode;
  pageSize?: number;
  onSelect?: (row: T, index: number) => void;
}

const formats: Record<string, (value: number) => string> = {
  bytes: (value) => `${value} B`,
  kilobytes: (value) => `${(value / 1024).toFixed(1)} kB`,
};

/** Calls back when nothing has changed for a while. */
function useDebounced<T>(value: T, delay = 200): T {
  const [settled, setSettled] = useState(value);
  useEffect(() => {
    const timer = setTimeout(() => setSettled(value), delay);
    return () => clearTimeout(timer);
  }, [value, delay]);
  return settled;
}

export function Table({ rows, title, pageSize = 20, onSelect }: TableProps<Row>): JSX.Element {
  const [page, setPage] = useState(0);
  const [query, setQuery] = useState("");
  const wanted = useDebounced(query.trim().toLowerCase());
  const input = useRef<HTMLInputElement>(null);

  const shown = useMemo(
    () => rows.filter((row) => !row.hidden && row.name.toLowerCase().includes(wanted)),
    [rows, wanted],
  );
  const pages = Math.max(1, Math.ceil(shown.length / pageSize));

  const select = useCallback(
    (row: Row, index: number) => {
      onSelect?.(row, index);
      input.current?.focus();
    },
    [onSelect],
  );

  if (rows.length === 0) {
    return <p className="empty">There's nothing to show.</p>;
  }

  return (
    <section className="table" aria-label="rows">
      <header>
        <h2>{title}</h2>
        <input
          ref={input}
          type="search"
          value={query}
          placeholder="Search in the names"
          onChange={(event) => setQuery(event.target.value)}
        />
      </header>
      <ul>
        {shown.slice(page * pageSize, (page + 1) * pageSize).map((row, index) => (
          <li key={row.id} className={row.size > 1024 ? "large" : "small"} onClick={() => select(row, index)}>
            <strong>{row.name}</strong> takes {formats[row.size > 1024 ? "kilobytes" : "bytes"](row.size)} here
          </li>
        ))}
      </ul>
      {pages > 1 && (
        <footer>
          <button disabled={page === 0} onClick={() => setPage(page - 1)}>
            Back
          </button>
          <span>
            Page {page + 1} of {pages}
          </span>
          <button disabled={page + 1 >= pages} onClick={() => setPage((before) => before + 1)}>
            Next
          </button>
        </footer>
      )}
    </section>
  );
}

interface BoundaryState {
  problem: Error | null;
}

export class Boundary extends React.Component<{ children: ReactNode }, BoundaryState> {
  state: BoundaryState = { problem: null };

  static getDerivedStateFromError(problem: Error): BoundaryState {
    return { problem };
  }

  componentDidCatch(problem: Error): void {
    console.error("a view failed:", problem.message);
  }

  render(): ReactNode {
    const { problem } = this.state;
    if (problem) {
      return (
        <div role="alert" style={{ color: "red", padding: 4 }}>
          Something went wrong: {problem.message}
        </div>
      );
    }
    return <>{this.props.children}</>;
  }
}

export default function App(): JSX.Element {
  const [rows, setRows] = useState<Row[]>([]);
  useEffect(() => {
    let active = true;
    async function load(): Promise<void> {
      const reply = await fetch("/api/rows?limit=500", { headers: { accept: "application/json" } });
      const found = (await reply.json()) as Row[];
      if (active) {
        setRows(found.sort((one, other) => other.size - one.size));
      }
    }
    void load();
    return () => {
      active = false;
    };
  }, []);
  return (
    <Boundary>
      <Table rows={rows} title={<em>All rows</em>} onSelect={(row) => console.log(row.id)} />
    </Boundary>
  );
}
