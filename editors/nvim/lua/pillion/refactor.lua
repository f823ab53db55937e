--- `:Pillion refactor`: one change in many files, with progress and a preview.

local job = require("pillion.job")
local review = require("pillion.review")
local server = require("pillion.server")

local M = {}

---@param result table
---@return string
local function account(result)
  local counts = { changed = 0, unchanged = 0, refused = 0 }
  for _, file in ipairs(result.files or {}) do
    counts[file.state] = counts[file.state] + 1
  end
  local words = ("%d changed, %d unchanged, %d refused"):format(
    counts.changed,
    counts.unchanged,
    counts.refused
  )
  for _, file in ipairs(result.files or {}) do
    if file.state == "refused" then
      words = words .. ("\n  %s: %s"):format(file.path, file.reason)
    end
  end
  for _, file in ipairs(result.skipped or {}) do
    words = words .. ("\n  %s: %s"):format(file.path, file.reason)
  end
  return words
end

---@param buffer integer
---@param instruction string
function M.run(buffer, instruction)
  if vim.trim(instruction) == "" then
    job.say(
      "say what to change: :Pillion refactor Use `load` instead of `fetch`.",
      vim.log.levels.WARN
    )
    return
  end
  local root = server.root(buffer)
  if not root then
    job.say(
      "this file is in no project: no folder above it has one of root_markers",
      vim.log.levels.WARN
    )
    return
  end
  local params = { instruction = instruction, root = root }
  job.run("refactor", "pillion/refactor", params, buffer, function(result)
    local client = server.any()
    local changes = result.edit and client and review.changes(result.edit, client.offset_encoding)
    job.say("refactor: " .. account(result))
    if changes and #changes > 0 then
      review.show(changes, "Pillion: " .. instruction)
    end
  end)
end

return M
