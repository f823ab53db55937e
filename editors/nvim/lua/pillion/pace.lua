--- How long to wait behind a key before asking: as long as an answer is likely to take, in bounds.
--- Where answers come at once a key costs nothing; where they take long, most would be thrown away.

local M = {}

local SHORTEST, LONGEST, FIRST = 10, 250, 60
local WEIGHT = 0.3

---@type number? milliseconds, decayed
local latency

--- An answer came.
---@param ms number
function M.measured(ms)
  latency = latency and (latency + WEIGHT * (ms - latency)) or ms
end

---@return number? milliseconds that answers took lately
function M.latency()
  return latency
end

---@param fixed number|false
---@return integer milliseconds
function M.debounce(fixed)
  if fixed then
    return math.floor(fixed)
  end
  return math.floor(math.max(SHORTEST, math.min(LONGEST, (latency or FIRST) / 2)))
end

return M
