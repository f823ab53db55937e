--- `:Pillion edit` and `:Pillion fix`: the daemon writes lines again, a preview shows what changes.

local job = require("pillion.job")
local review = require("pillion.review")
local server = require("pillion.server")

local M = {}

--- Whole lines as a range. Its end is in the last line, so that it is inside of any document.
---@param buffer integer
---@param first integer from 1
---@param last integer from 1
---@return lsp.Range
function M.lines(buffer, first, last)
  local line = vim.api.nvim_buf_get_lines(buffer, last - 1, last, false)[1] or ""
  local client = server.client(buffer)
  local encoding = client and client.offset_encoding or "utf-16"
  local stop =
    { line = last - 1, character = require("pillion.positions").to_server(line, #line, encoding) }
  if line == "" and last > first then
    stop = { line = last, character = 0 }
  end
  return { start = { line = first - 1, character = 0 }, ["end"] = stop }
end

---@param buffer integer
---@param tick integer the buffer's changedtick when it was asked
---@param edit lsp.WorkspaceEdit?
---@param title string
---@param nothing string what to say where nothing changes
local function preview(buffer, tick, edit, title, nothing)
  local client = server.any()
  if not vim.api.nvim_buf_is_loaded(buffer) or vim.api.nvim_buf_get_changedtick(buffer) ~= tick then
    job.say("the text was changed meanwhile; ask again", vim.log.levels.WARN)
    return
  end
  local changes = edit and client and review.changes(edit, client.offset_encoding) or {}
  if #changes == 0 then
    job.say(nothing)
  else
    review.show(changes, title)
  end
end

---@param buffer integer
---@param range lsp.Range?
---@param instruction string
local function ask(buffer, range, instruction)
  local tick = vim.api.nvim_buf_get_changedtick(buffer)
  local uri = vim.uri_from_bufnr(buffer)
  local params = { uri = uri, range = range, instruction = instruction }
  job.run("edit", "pillion/edit", params, buffer, function(result)
    local message = result.message ~= "" and result.message or "nothing to change"
    preview(buffer, tick, result.edit, "Pillion: " .. instruction, message)
  end)
end

---@param buffer integer
---@param range lsp.Range?
---@param instruction string asked for where it is empty
function M.run(buffer, range, instruction)
  if instruction ~= "" then
    ask(buffer, range, instruction)
    return
  end
  vim.ui.input({ prompt = "Pillion edit: " }, function(answer)
    if answer and vim.trim(answer) ~= "" then
      ask(buffer, range, answer)
    end
  end)
end

--- The code action "Edit selection...".
---@param about {uri: string, range: lsp.Range}
function M.by_action(about)
  M.run(vim.uri_to_bufnr(about.uri), about.range, "")
end

---@param diagnostic vim.Diagnostic
---@param buffer integer
---@param encoding string
---@return lsp.Diagnostic
local function as_server(diagnostic, buffer, encoding)
  local from_server = vim.tbl_get(diagnostic, "user_data", "lsp")
  if from_server and from_server.range then
    return from_server
  end
  local positions = require("pillion.positions")
  local function position(row, column)
    local line = vim.api.nvim_buf_get_lines(buffer, row, row + 1, false)[1] or ""
    return { line = row, character = positions.to_server(line, column, encoding) }
  end
  local row, column = diagnostic.end_lnum or diagnostic.lnum, diagnostic.end_col or diagnostic.col
  return {
    range = { start = position(diagnostic.lnum, diagnostic.col), ["end"] = position(row, column) },
    message = diagnostic.message,
    severity = diagnostic.severity,
    source = diagnostic.source,
  }
end

--- Fix what is reported for the cursor's line.
---@param buffer integer
---@param row integer from 0
function M.fix(buffer, row)
  local client = server.client(buffer)
  local diagnostics = vim.diagnostic.get(buffer, { lnum = row })
  if #diagnostics == 0 then
    job.say("nothing is reported for this line")
    return
  end
  local encoding = client and client.offset_encoding or "utf-16"
  local tick = vim.api.nvim_buf_get_changedtick(buffer)
  local problem = as_server(diagnostics[1], buffer, encoding)
  job.run(
    "fix",
    "textDocument/codeAction",
    {
      textDocument = { uri = vim.uri_from_bufnr(buffer) },
      range = problem.range,
      context = { diagnostics = { problem }, only = { "quickfix" }, triggerKind = 1 },
    },
    buffer,
    function(actions)
      local action = actions and actions[1]
      if not action then
        job.say("no fix is offered for this")
        return
      end
      job.run("fix", "codeAction/resolve", action, buffer, function(resolved)
        preview(buffer, tick, resolved.edit, action.title, "nothing to change")
      end)
    end
  )
end

return M
