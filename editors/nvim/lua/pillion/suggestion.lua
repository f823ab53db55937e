--- One suggestion: where it goes, what of it is in the buffer already, and what is left of it.

local positions = require("pillion.positions")

---@class pillion.Suggestion
---@field buffer integer
---@field row integer from 0; where the text goes
---@field column integer in bytes, from 0
---@field text string the whole of it, lines separated by "\n"
---@field right string what follows on the line and stays
---@field command lsp.Command? to run once it was accepted

---@class pillion.Rest
---@field text string what is still to be inserted at the cursor
---@field after string what right of the cursor the text takes the place of
---@field right string what follows behind that and stays

local M = {}

---@param item table an InlineCompletionItem of LSP 3.18
---@param at {buffer: integer, row: integer, column: integer} where it was asked for
---@param encoding string the client's position encoding
---@return pillion.Suggestion?
function M.new(item, at, encoding)
  local text = item.insertText
  if type(text) ~= "string" or text == "" then
    return nil
  end
  local line = vim.api.nvim_buf_get_lines(at.buffer, at.row, at.row + 1, false)[1] or ""
  local first, last = at.column, at.column
  if item.range then
    if item.range.start.line ~= at.row or item.range["end"].line ~= at.row then
      return nil
    end
    first = positions.to_byte(line, item.range.start.character, encoding)
    last = positions.to_byte(line, item.range["end"].character, encoding)
  end
  text = text:gsub("\r\n?", "\n")
  -- A file of both kinds of line ends shows one of them as a character of the line.
  if line:sub(-1) == "\r" then
    text = text:gsub("\n", "\r\n")
  end
  return {
    buffer = at.buffer,
    row = at.row,
    column = first,
    text = text,
    right = line:sub(last + 1),
    command = item.command,
  }
end

--- What is left of it at a place; nil where the buffer says something else by now.
---@param suggestion pillion.Suggestion
---@param row integer
---@param column integer
---@return pillion.Rest?
function M.rest(suggestion, row, column)
  local first = suggestion.row
  if row < first or (row == first and column < suggestion.column) then
    return nil
  end
  local ok, typed =
    pcall(vim.api.nvim_buf_get_text, suggestion.buffer, first, suggestion.column, row, column, {})
  if not ok then
    return nil
  end
  local before = table.concat(typed, "\n")
  if not vim.startswith(suggestion.text, before) then
    return nil
  end
  local line = vim.api.nvim_buf_get_lines(suggestion.buffer, row, row + 1, false)[1] or ""
  local behind = line:sub(column + 1)
  if not vim.endswith(behind, suggestion.right) then
    return nil
  end
  return {
    text = suggestion.text:sub(#before + 1),
    after = behind:sub(1, #behind - #suggestion.right),
    right = suggestion.right,
  }
end

---@param text string
---@return string[] characters, each with what combines with it
local function characters(text)
  return vim.fn.split(text, "\\zs")
end

--- Where in `text` the characters of `after` stand, from the right: what need not be inserted
--- because it is there. Nil where they do not stand in it in that order.
---@param text string a single line
---@param after string
---@return integer[]? bytes from 1, ascending
function M.align(text, after)
  local found, wanted = {}, characters(after)
  local places, at = {}, 1
  local chars = characters(text)
  for index, char in ipairs(chars) do
    places[index] = at
    at = at + #char
  end
  local index = #chars
  for want = #wanted, 1, -1 do
    while index > 0 and chars[index] ~= wanted[want] do
      index = index - 1
    end
    if index == 0 then
      return nil
    end
    table.insert(found, 1, places[index])
    index = index - 1
  end
  return found
end

--- Ideographs are words of their own: a whole sentence of them has no blank to stop at.
local HAN = vim.fn.charclass("字")

--- The next word: blanks and line ends in front of it, then characters of one class.
---@param text string
---@return string
function M.word(text)
  local blank = text:match("^%s*")
  local word, class = "", nil
  for _, char in ipairs(characters(text:sub(#blank + 1, #blank + 256))) do
    local its = vim.fn.charclass(char)
    if its == 0 or (class and (its ~= class or its == HAN)) then
      break
    end
    word, class = word .. char, its
  end
  return blank .. word
end

--- To the end of the line; from an end of a line on, the next line that is not empty.
---@param text string
---@return string
function M.line(text)
  return text:match("^[\r\n]*[^\n]*")
end

--- What accepting a piece of what is left does to the line.
---@param rest pillion.Rest
---@param piece string the beginning of `rest.text`
---@return integer bytes right of the cursor that the piece takes the place of
function M.replaces(rest, piece)
  if piece == rest.text then
    return #rest.after
  end
  local first = rest.text:match("^[^\n]*")
  local places = M.align(first, rest.after)
  local bytes = 0
  for index, char in ipairs(places and characters(rest.after) or {}) do
    if places[index] <= #piece then
      bytes = bytes + #char
    end
  end
  return bytes
end

return M
