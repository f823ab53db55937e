--- Pillion for Neovim: suggestions, edits and refactors from the daemon on this machine.

local M = {}

local ready = false

--- Once, before anything else: highlights, keys, events.
local function load()
  if not ready then
    ready = true
    require("pillion.keys").install_trigger()
    require("pillion.completion").enable()
  end
end

--- Settings; see `:help pillion-settings`. Not needed for the defaults.
---@param settings table?
function M.setup(settings)
  local config = require("pillion.config").set(settings)
  if ready and not config.enabled then
    M.disable()
  end
end

--- Give a buffer suggestions. Called for every file; does nothing where it should not.
---@param buffer integer
---@return boolean
---@return string? why not
function M.attach(buffer)
  load()
  return require("pillion.server").attach(buffer)
end

--- Switch on: everywhere, or for a file type.
---@param filetype string?
function M.enable(filetype)
  local config = require("pillion.config").get()
  config.enabled = true
  if filetype then
    config.filetypes[filetype] = true
  end
  for _, buffer in ipairs(vim.api.nvim_list_bufs()) do
    if vim.api.nvim_buf_is_loaded(buffer) and vim.bo[buffer].buflisted then
      M.attach(buffer)
    end
  end
end

--- Switch off: everywhere, or for a file type. The text of such buffers goes nowhere any more.
---@param filetype string?
function M.disable(filetype)
  local config, server = require("pillion.config").get(), require("pillion.server")
  if filetype then
    config.filetypes[filetype] = false
    require("pillion.completion").reset()
    for _, buffer in ipairs(server.attached()) do
      if not require("pillion.eligible").check(buffer) then
        server.detach(buffer)
      end
    end
  else
    config.enabled = false
    server.stop()
  end
end

--- Switch on or off.
---@return boolean whether it is on now
function M.toggle()
  local enabled = not require("pillion.config").get().enabled
  if enabled then
    M.enable()
  else
    M.disable()
  end
  return enabled
end

--- Whether a suggestion is on the screen; for mappings of your own.
---@return boolean
function M.visible()
  return require("pillion.completion").visible()
end

--- Accept what is shown, or its next line or word.
---@param part "all"|"line"|"word"|nil
---@return boolean whether there was something
function M.accept(part)
  return require("pillion.completion").accept(part or "all")
end

--- The daemon's state in a few words, for a statusline.
---@return string
function M.statusline()
  return package.loaded["pillion.server"] and require("pillion.status").line() or ""
end

return M
