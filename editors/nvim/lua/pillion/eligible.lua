--- Which buffers Pillion serves. The text of all others goes nowhere.

local config = require("pillion.config")

local M = {}

---@param buffer integer
---@return boolean
local function by_type(buffer)
  local filetypes = config.get().filetypes
  local own = filetypes[vim.bo[buffer].filetype]
  if own == nil then
    return filetypes["*"] ~= false
  end
  return own
end

---@param buffer integer
---@return boolean
---@return string? why not
function M.check(buffer)
  local bo, own = vim.bo[buffer], vim.b[buffer].pillion_enabled
  local name = vim.api.nvim_buf_get_name(buffer)
  if not config.get().enabled then
    return false, "Pillion is switched off"
  elseif own == false then
    return false, "it is switched off for this buffer"
  elseif not own and not by_type(buffer) then
    return false, ("it is switched off for the file type %q"):format(bo.filetype)
  elseif bo.buftype ~= "" then
    return false, "this is no buffer of a file"
  elseif name == "" or name:match("^%a[%w+.-]+:/") then
    return false, "this buffer has no file"
  elseif not bo.modifiable or bo.readonly then
    return false, "this buffer is read-only"
  end
  local bytes = vim.api.nvim_buf_get_offset(buffer, vim.api.nvim_buf_line_count(buffer))
  if bytes > config.get().max_file_bytes then
    return false, "this file is larger than max_file_bytes"
  end
  return true
end

return M
