import { useState
//               ^ import open={
function View({ items, 
//                     ^ signature open=({
  const [open, setOpen] = useState(
//                                 ^ arguments
  return (
    <ul className="list
//                     ^ string
export const Row = (props: Props) => {
//                                    ^ block_start indent=2
  const total = props.
//                    ^ identifier
  if (total ===
//             ^ operator
  call(total, 
//            ^ arguments indent=4 open={(
  // a remark {
//             ^ comment
}}
//2 ^ closing
const text = `one ${
//                  ^ statement
