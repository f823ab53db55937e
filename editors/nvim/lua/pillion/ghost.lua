--- Text on the screen that is not in the buffer.

local suggestion = require("pillion.suggestion")

local M = {}

local space = vim.api.nvim_create_namespace("pillion.ghost")
local GROUP = "PillionGhost"

local function define()
  vim.api.nvim_set_hl(0, GROUP, { link = "Comment", default = true })
end
define()
vim.api.nvim_create_autocmd("ColorScheme", {
  group = vim.api.nvim_create_augroup("pillion.ghost", {}),
  callback = define,
})

--- Virtual text shows a tab as one cell and control characters raw, so both are written out.
---@param text string
---@param column integer where on the screen line it starts
---@return string
local function written(text, column)
  local pieces = vim.split(text, "\t", { plain = true })
  local shown = ""
  for index, piece in ipairs(pieces) do
    shown = shown .. vim.fn.strtrans(piece)
    if index < #pieces then
      local at = column + vim.fn.strdisplaywidth(shown, column)
      shown = shown .. (" "):rep(vim.fn.strdisplaywidth("\t", at))
    end
  end
  return shown
end

---@param line string
---@param column integer bytes
---@return integer cells left of it
local function cells(line, column)
  return vim.fn.strdisplaywidth(line:sub(1, column))
end

---@param lines string[] the lines behind the first
---@param right string what follows on the last of them
---@return table[]? virt_lines
local function below(lines, right)
  local shown = {}
  for index = 2, #lines do
    local text = written(lines[index], 0)
    local chunks = { { text, GROUP } }
    if index == #lines and right ~= "" then
      chunks[2] = { written(right, vim.fn.strdisplaywidth(text)), "" }
    end
    table.insert(shown, chunks)
  end
  return #shown > 0 and shown or nil
end

---@param buffer integer
---@param row integer
---@param column integer
---@param text table[] virt_text
---@param place "inline"|"overlay"
---@param lines table[]?
local function mark(buffer, row, column, text, place, lines)
  vim.api.nvim_buf_set_extmark(buffer, space, row, column, {
    virt_text = text,
    virt_text_pos = place,
    virt_lines = lines,
    hl_mode = "combine",
    undo_restore = false,
    priority = 1000,
  })
end

--- Between and behind the characters that are there already.
---@param first string
---@param places integer[] where those stand in `first`
---@param after string
local function weave(buffer, row, column, line, first, places, after, lines)
  local from, at = 1, column
  local screen = cells(line, column)
  local chars = vim.fn.split(after, "\\zs")
  for index = 1, #places + 1 do
    local till = places[index] or #first + 1
    local text = written(first:sub(from, till - 1), screen)
    local last = index > #places
    if text ~= "" or (last and lines) then
      mark(buffer, row, at, { { text, GROUP } }, "inline", last and lines or nil)
    end
    if not last then
      screen = screen + vim.fn.strdisplaywidth(text .. chars[index], screen)
      from, at = till + #chars[index], at + #chars[index]
    end
  end
end

--- Show what is left of a suggestion at the cursor. What stands right of the cursor stays visible
--- where it will be: behind the last line.
---@param buffer integer
---@param row integer
---@param column integer
---@param rest pillion.Rest
function M.draw(buffer, row, column, rest)
  M.clear(buffer)
  local lines = vim.split(rest.text, "\n", { plain = true })
  local line = vim.api.nvim_buf_get_lines(buffer, row, row + 1, false)[1] or ""
  local behind = rest.after .. rest.right
  local places = (#lines == 1 or behind == "") and suggestion.align(lines[1], rest.after)
  if places then
    weave(buffer, row, column, line, lines[1], places, rest.after, below(lines, ""))
    return
  end
  local screen = cells(line, column)
  local first = written(lines[1], screen)
  if #lines == 1 then
    first = first .. written(rest.right, screen + vim.fn.strdisplaywidth(first, screen))
  end
  local over = vim.fn.strdisplaywidth(behind, screen) - vim.fn.strdisplaywidth(first, screen)
  local text = { { first .. (" "):rep(over), GROUP } }
  mark(buffer, row, column, text, "overlay", below(lines, rest.right))
end

---@param buffer integer
function M.clear(buffer)
  if vim.api.nvim_buf_is_valid(buffer) then
    vim.api.nvim_buf_clear_namespace(buffer, space, 0, -1)
  end
end

return M
