--- Columns as Lua counts them (bytes from 0) and as a language server does.

local M = {}

--- Neovim 0.11 took the encoding's name instead of a flag.
local named = vim.fn.has("nvim-0.11") == 1

---@param line string
---@param byte integer
---@param encoding "utf-8"|"utf-16"|"utf-32"
---@return integer
function M.to_server(line, byte, encoding)
  byte = math.min(byte, #line)
  if encoding == "utf-8" then
    return byte
  elseif named then
    return vim.str_utfindex(line, encoding, byte, false)
  end
  ---@diagnostic disable-next-line: param-type-mismatch
  local utf32, utf16 = vim.str_utfindex(line, byte)
  return encoding == "utf-16" and utf16 or utf32
end

--- A column behind the line's end is its end, as LSP says.
---@param line string
---@param column integer
---@param encoding "utf-8"|"utf-16"|"utf-32"
---@return integer
function M.to_byte(line, column, encoding)
  if encoding == "utf-8" then
    return math.min(column, #line)
  elseif named then
    return vim.str_byteindex(line, encoding, column, false)
  end
  local utf32, utf16 = vim.str_utfindex(line) ---@diagnostic disable-line
  local most = encoding == "utf-16" and utf16 or utf32
  ---@diagnostic disable-next-line: param-type-mismatch
  return vim.str_byteindex(line, math.min(column, most), encoding == "utf-16")
end

return M
