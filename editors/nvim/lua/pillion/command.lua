--- `:Pillion`, one function a subcommand.

local M = {}

---@class pillion.Call
---@field buffer integer
---@field first integer line from 1
---@field last integer
---@field ranged boolean whether a range was given
---@field text string what follows the subcommand

---@param call pillion.Call
---@return lsp.Range?
local function range_of(call)
  if call.ranged then
    return require("pillion.edit").lines(call.buffer, call.first, call.last)
  end
end

---@param message string
local function say(message)
  vim.notify("pillion: " .. message)
end

---@type table<string, fun(call: pillion.Call)>
local verbs = {}

function verbs.status(call)
  local status, window = require("pillion.status"), require("pillion.window")
  local lines = status.lines(nil, call.buffer)
  local view = window.open(lines, { title = "Pillion", footer = "q closes", filetype = "pillion" })
  status.report(function(report)
    if vim.api.nvim_buf_is_valid(view.buffer) then
      lines = status.lines(report, call.buffer)
      window.fill(view.buffer, lines)
      window.resize(view, lines)
    end
  end)
end

function verbs.toggle()
  say(require("pillion").toggle() and "on" or "off")
end

function verbs.enable(call)
  require("pillion").enable(call.text ~= "" and call.text or nil)
end

function verbs.disable(call)
  require("pillion").disable(call.text ~= "" and call.text or nil)
end

function verbs.edit(call)
  require("pillion.edit").run(call.buffer, range_of(call), call.text)
end

function verbs.fix(call)
  require("pillion.edit").fix(call.buffer, call.last - 1)
end

function verbs.explain(call)
  require("pillion.explain").run(call.buffer, range_of(call), call.text)
end

function verbs.refactor(call)
  require("pillion.refactor").run(call.buffer, call.text)
end

function verbs.cancel()
  if not require("pillion.job").cancel() then
    say("nothing is at work")
  end
end

function verbs.restart()
  require("pillion.server").restart()
end

function verbs.log()
  local state = vim.env.XDG_STATE_HOME or vim.fs.joinpath(vim.uv.os_homedir(), ".local/state")
  local daemon = vim.fs.joinpath(state, "pillion", "daemon.log")
  local path = vim.uv.fs_stat(daemon) and daemon or vim.lsp.log.get_filename()
  vim.cmd.split(vim.fn.fnameescape(path))
  vim.cmd.normal({ "G", bang = true })
  vim.bo.readonly = true
end

--- `:Pillion VERB ...`; the status where no verb is given.
---@param call table as `nvim_create_user_command` gives it
function M.run(call)
  local name, text = call.args:match("^(%S+)%s*(.*)$")
  local verb = verbs[name or "status"]
  if not verb then
    local known = table.concat(M.complete("", "Pillion ", 8), ", ")
    vim.notify(("pillion: no verb %q; there are %s"):format(name, known), vim.log.levels.ERROR)
    return
  end
  local buffer = vim.api.nvim_get_current_buf()
  require("pillion").attach(buffer)
  verb({
    buffer = buffer,
    first = call.line1,
    last = call.line2,
    ranged = call.range > 0,
    text = vim.trim(text or ""),
  })
end

--- What fits behind `:Pillion`.
---@param lead string
---@param line string
---@param position integer
---@return string[]
function M.complete(lead, line, position)
  local words = vim.split(line:sub(1, position):gsub("^.-Pillion%s*", ""), "%s+")
  local choices = {} ---@type string[]
  if #words <= 1 then
    choices = vim.tbl_keys(verbs)
  elseif #words == 2 and (words[1] == "enable" or words[1] == "disable") then
    choices = vim.fn.getcompletion(lead, "filetype")
  end
  table.sort(choices)
  return vim.tbl_filter(function(choice)
    return vim.startswith(choice, lead)
  end, choices)
end

return M
