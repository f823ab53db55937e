--- What the daemon is doing, as it tells us itself: for the statusline, `:Pillion status` and who
--- listens to the event `User PillionStatus`.

local pace = require("pillion.pace")
local server = require("pillion.server")

---@class pillion.Summary
---@field state "loading"|"ready"|"busy"|"target-only"|"error"|"stopped"
---@field message string
---@field action string
---@field percent integer?
---@field model string
---@field target_only string
---@field tok_s number?
---@field surplus_ms number?
---@field cache_hit_share number?

local M = {}

---@type pillion.Summary?
local summary
--- Whether this connection's daemon ever had its model.
local served = false

--- Let whoever shows the state show it again.
function M.changed()
  if vim.o.laststatus > 0 then
    vim.cmd.redrawstatus()
  end
  vim.api.nvim_exec_autocmds("User", { pattern = "PillionStatus", modeline = false })
end

---@param now pillion.Summary?
local function take(now)
  summary = now
  served = served or (now ~= nil and now.state ~= "loading" and now.state ~= "error")
  M.changed()
end

--- Why the daemon cannot have its model, as it said itself: another one could not either.
---@return string?
function M.hopeless()
  if summary and summary.state == "error" and not served then
    local action = summary.action ~= "" and "; " .. summary.action or ""
    return summary.message .. action
  end
end

--- The daemon's notification.
---@param now pillion.Summary
function M.did_change(_, now)
  take(now)
end

--- A new connection: ask how it stands, and to be told from now on.
function M.watch()
  M.report(function() end)
end

--- The whole of pillion/status.
---@param done fun(report: table?)
function M.report(done)
  local client = server.any()
  if not client then
    done(nil)
    return
  end
  server.request(client, "pillion/status", { watch = true }, function(err, result)
    if result and result.summary then
      take(result.summary)
    end
    done(not err and result or nil)
  end)
end

server.on_change(function(connection)
  if connection ~= "connected" then
    summary, served = nil, false
  end
  M.changed()
end)

---@return string state one word
---@return string? detail
function M.state()
  local connection, trouble = server.connection()
  if connection ~= "connected" then
    return connection, trouble
  end
  local at_work = require("pillion.job").current()
  if at_work then
    return "busy", at_work
  elseif not summary then
    return "starting", nil
  end
  return summary.state, summary.message
end

--- For a statusline: short, and empty while Pillion is off.
---@return string
function M.line()
  local state, detail = M.state()
  if state == "off" then
    return ""
  end
  local words = { "Pillion" }
  if state == "busy" and detail and require("pillion.job").current() then
    table.insert(words, detail)
  elseif summary and (state == "ready" or state == "busy" or state == "target-only") then
    table.insert(words, summary.model)
    if state ~= "ready" then
      table.insert(words, state)
    end
    if summary.tok_s then
      table.insert(words, ("%.0f tok/s"):format(summary.tok_s))
    end
  else
    table.insert(words, state)
    if summary and summary.percent then
      table.insert(words, summary.percent .. "%")
    end
  end
  return (table.concat(words, " "):gsub("%%", "%%%%"))
end

---@param report table?
---@param buffer integer
---@return string[] what `:Pillion status` shows
function M.lines(report, buffer)
  local state, detail = M.state()
  local lines = { "state      " .. state .. (detail and detail ~= "" and ": " .. detail or "") }
  local function add(name, format, ...)
    if select("#", ...) > 0 and select(1, ...) ~= nil then
      table.insert(lines, ("%-10s " .. format):format(name, ...))
    end
  end
  local able, why = require("pillion.eligible").check(buffer)
  local attached = server.client(buffer) and "attached" or "not attached yet"
  add("buffer", "%s", able and attached or why)
  if summary then
    add("to do", "%s", summary.action ~= "" and summary.action or nil)
    add("model", "%s", summary.model)
    add("drafting", "%s", summary.target_only ~= "" and "no: " .. summary.target_only or nil)
    add("speed", "%.0f tokens a second", summary.tok_s)
    add("surplus", "%.2f ms a token", summary.surplus_ms)
    add(
      "cache",
      "%.0f%% of prompt tokens",
      summary.cache_hit_share and 100 * summary.cache_hit_share
    )
  end
  if report then
    add(
      "exact",
      "%s",
      report.exactness and (report.exactness.exact and "yes" or report.exactness.reason)
    )
    add("requests", "%d active, %d queued", report.active, report.queued)
    add("daemon", "%s, pid %d", report.version, report.pid)
    add("socket", "%s", report.socket)
    add("url", "%s", report.url)
  end
  local debounce = pace.debounce(require("pillion.config").get().debounce)
  add("latency", "%.0f ms; keys wait %d ms", pace.latency(), debounce)
  return lines
end

return M
