local function half(first, 
--                         ^ signature
local t = { one = 1, two =
--                        ^ operator
if first > 2
--          ^ identifier
for i = 1, #t do
--              ^ block_start indent=2
    print("open
--             ^ string
    t.
--    ^ identifier
    call(t, 
--          ^ arguments
-- a remark (
--           ^ comment
--[[ never closed
x = call(
--       ^ comment
