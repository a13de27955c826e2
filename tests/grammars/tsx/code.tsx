import React, { useState } from "react";
//                 ^ import
//                                 ^ import
import type { Props } from "./props";
//                         ^ import indent=0

/** Shows a list. */
//          ^ docstring
export function List({ items, title }: Props): JSX.Element {
//                            ^ signature
//                                             ^ signature indent=0
//                                                          ^ block_start
  const [open, setOpen] = useState(false);
//0 ^ indent
//                        ^ operator indent=2 open={
//                                 ^ arguments
//                                       ^ closing
  // toggles the list
//               ^ comment indent=2 open={
  const toggle = () => setOpen(!open);
//                     ^ operator
//                              ^ operator
  if (items.length === 0) {
//                     ^ operator indent=4 open={(
//                         ^ block_start
    return <p>Nothing to show, isn't it?</p>;
//         ^ statement
//                       ^ free_text open={{
//                                   ^ free_text
  }
// ^ closing
  return (
    <section className="main" onClick={toggle}>
//                        ^ string open={(
//                                        ^ identifier
      <h1>The title: {title.name}</h1>
//              ^ free_text
//                          ^ identifier indent=8 open={({
      {items.map((item, index) => (
//                      ^ signature whole
        <Item key={item.id} label={lookup(item)} />
//                      ^ identifier
//                                        ^ arguments indent=10 open={({(({(
      ))}
    </section>
  );
}

interface Half extends Props {
//                     ^ signature
//                            ^ block_start
  scale: number;
  draw(depth: number): void;
//            ^ signature indent=4 open={(
}

export class Panel extends Component<Half> {
//                         ^ signature
//                                          ^ block_start
  render() {
//       ^ signature indent=4 open={(
//          ^ block_start
    const text = `one ${this.name} two`;
//                           ^ identifier
//                                 ^ string indent=4 open={{
    return <Shape size={4} {...this.props} />;
//                             ^ operator
  }
}
export const value = pick(1, "two");
//                           ^ arguments
//                              ^ string indent=2 open=(
//                                 ^ closing
const table = { key: value, other: [1, 2] };
//                   ^ operator
//                                   ^ identifier indent=2 open={[
