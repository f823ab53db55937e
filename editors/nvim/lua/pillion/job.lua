--- What takes seconds: an edit, an explanation, a refactor. One at a time, with progress, and ended
--- by `:Pillion cancel`.

local server = require("pillion.server")

local M = {}

---@class pillion.Job
---@field what string
---@field client vim.lsp.Client
---@field id integer?
---@field percentage integer?
---@field message string?
---@field tokens string[]

---@type pillion.Job?
local current
local count = 0

local function changed()
  require("pillion.status").changed()
end

local function over()
  for _, token in ipairs(current and current.tokens or {}) do
    server.listen(token, nil)
  end
  current = nil
  changed()
end

---@return string? what is at work, and how far it is
function M.current()
  if not current then
    return nil
  end
  local words = { current.what }
  if current.percentage then
    table.insert(words, current.percentage .. "%")
  end
  return table.concat(words, " ")
end

---@param message string
---@param level integer?
function M.say(message, level)
  vim.notify("pillion: " .. message, level or vim.log.levels.INFO)
end

--- Ask the daemon for something that takes its time.
---@param what string one word
---@param method string
---@param params table
---@param buffer integer
---@param done fun(result: any) only where there is a result
---@param partial fun(value: table)? pieces of it, as they come
---@return boolean whether it was sent
function M.run(what, method, params, buffer, done, partial)
  if current then
    M.say(current.what .. " is at work; :Pillion cancel ends it", vim.log.levels.WARN)
    return false
  end
  local client = server.client(buffer)
  if not client then
    local able, why = require("pillion.eligible").check(buffer)
    local _, trouble = server.connection()
    M.say(not able and why or trouble or "not connected yet", vim.log.levels.WARN)
    return false
  end
  count = count + 1
  local token = ("pillion-%s-%d"):format(what, count)
  local job = { what = what, client = client, tokens = { token } }
  current = job
  server.listen(token, function(value)
    job.percentage = value.percentage or job.percentage
    job.message = value.message
    changed()
  end)
  params.workDoneToken = token
  if partial then
    params.partialResultToken = token .. "-partial"
    table.insert(job.tokens, params.partialResultToken)
    server.listen(params.partialResultToken, function(value)
      if current == job then
        partial(value)
      end
    end)
  end
  job.id = server.request(client, method, params, function(err, result)
    if current ~= job then
      return
    end
    over()
    if err then
      M.say(err.message, vim.log.levels.WARN)
    else
      done(result)
    end
  end, buffer)
  if not job.id then
    over()
    M.say("the connection was lost", vim.log.levels.WARN)
  end
  changed()
  return job.id ~= nil
end

--- End what is at work.
---@return boolean whether something was
function M.cancel()
  if not current then
    return false
  end
  local job = current
  over()
  if job.id then
    server.cancel(job.client, job.id)
  end
  M.say(job.what .. " was cancelled; nothing was changed")
  return true
end

--- The connection is gone, and what was at work with it.
function M.lost()
  if current then
    local what = current.what
    over()
    M.say(what .. " was lost with the connection; nothing was changed", vim.log.levels.WARN)
  end
end

return M
