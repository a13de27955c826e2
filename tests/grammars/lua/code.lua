local json = require("json")
--                   ^ arguments
--                      ^ string
--                          ^ closing indent=0
--- Documents it.
--            ^ docstring
-- a plain remark
--         ^ comment
local LIMIT = 10
--            ^ operator indent=0

function M.area(first, second)
--                     ^ signature
  local total = first + second
--0 ^ indent
--                      ^ operator indent=2
  if total > LIMIT then
--           ^ operator
--                     ^ block_start
    return math.max(total, 2)
--              ^ identifier indent=4
--                  ^ arguments
--                           ^ closing
  end
--   ^ identifier indent=2
  for i = 1, 10 do
--                ^ block_start
    shape:draw(i)
--        ^ identifier
  end
  --[[ a block comment
--             ^ comment indent=2
  over lines ]]
  local table = { name = "a", [1] = 'two' }
--                       ^ operator
--                                     ^ string
--                                         ^ closing indent=2
  local f = function(a, b)
--                      ^ signature
    return a .. b
--              ^ operator
  end
  return table
--      ^ identifier indent=2
end
local text = [[ long text ]]
--                   ^ string
