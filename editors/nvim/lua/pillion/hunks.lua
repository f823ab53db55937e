--- Text edits of a language server as runs of whole lines, each of which can be taken or left.

local positions = require("pillion.positions")

---@class pillion.Hunk
---@field first integer the line it begins at, from 0
---@field old string[]
---@field new string[]
---@field edits lsp.TextEdit[]
---@field chosen boolean

local M = {}

---@param edit lsp.TextEdit
---@return integer line
---@return integer character
local function start(edit)
  return edit.range.start.line, edit.range.start.character
end

--- The last line that an edit touches; one that ends where a line begins, and brings a line end or
--- takes one, leaves that line alone.
---@param edit lsp.TextEdit
---@return integer
local function last_line(edit)
  local stop, text = edit.range["end"], edit.newText
  local whole = text:sub(-1) == "\n" or (text == "" and stop.line > edit.range.start.line)
  return (stop.character == 0 and whole) and stop.line - 1 or stop.line
end

---@param edits lsp.TextEdit[]
---@return lsp.TextEdit[][] those that touch the same lines, or neighbours, together
local function grouped(edits)
  local sorted = vim.list_extend({}, edits)
  table.sort(sorted, function(one, other)
    local line, character = start(one)
    local other_line, other_character = start(other)
    return line < other_line or (line == other_line and character < other_character)
  end)
  local groups, last = {}, -2
  for _, edit in ipairs(sorted) do
    if edit.range.start.line > last + 1 then
      table.insert(groups, {})
    end
    table.insert(groups[#groups], edit)
    last = math.max(last, last_line(edit))
  end
  return groups
end

--- The lines that a group touches, afterwards.
---@param line fun(row: integer): string
---@param group lsp.TextEdit[]
---@param first integer
---@param last integer
---@param encoding string
---@return string[]
local function rewritten(line, group, first, last, encoding)
  local pieces, row, column = {}, first, 0
  local function keep(till_row, till_column)
    while row < till_row do
      table.insert(pieces, line(row):sub(column + 1) .. "\n")
      row, column = row + 1, 0
    end
    table.insert(pieces, line(row):sub(column + 1, till_column))
    column = till_column
  end
  for _, edit in ipairs(group) do
    local from, till = edit.range.start, edit.range["end"]
    keep(from.line, positions.to_byte(line(from.line), from.character, encoding))
    table.insert(pieces, (edit.newText:gsub("\r\n?", "\n")))
    row = till.line
    column = positions.to_byte(line(till.line), till.character, encoding)
  end
  keep(last, #line(last))
  return vim.split(table.concat(pieces), "\n", { plain = true })
end

---@param hunk pillion.Hunk
local function trim(hunk)
  local old, new = hunk.old, hunk.new
  while #old > 0 and #new > 0 and old[1] == new[1] do
    table.remove(old, 1)
    table.remove(new, 1)
    hunk.first = hunk.first + 1
  end
  while #old > 0 and #new > 0 and old[#old] == new[#new] do
    table.remove(old)
    table.remove(new)
  end
end

---@param lines string[] of the buffer
---@param edits lsp.TextEdit[] that do not overlap
---@param encoding string
---@return pillion.Hunk[] in order
function M.of(lines, edits, encoding)
  local function line(row)
    return lines[row + 1] or ""
  end
  local hunks = {}
  for _, group in ipairs(grouped(edits)) do
    local first, last = group[1].range.start.line, 0
    for _, edit in ipairs(group) do
      last = math.max(last, edit.range["end"].line)
    end
    local hunk = { first = first, old = {}, edits = group, chosen = true }
    for row = first, last do
      table.insert(hunk.old, line(row))
    end
    hunk.new = rewritten(line, group, first, last, encoding)
    trim(hunk)
    if #hunk.old + #hunk.new > 0 then
      table.insert(hunks, hunk)
    end
  end
  return hunks
end

return M
