--- `:checkhealth pillion`.

local M = {}

---@param cmd string[]
---@param arguments string[]
---@return vim.SystemCompleted
local function run(cmd, arguments)
  local command = { cmd[1] }
  vim.list_extend(command, arguments)
  local ok, job =
    pcall(vim.system, command, { text = true, cwd = vim.uv.os_homedir(), timeout = 20000 })
  if not ok then
    return { code = 127, signal = 0, stdout = "", stderr = tostring(job) }
  end
  return job:wait()
end

local function neovim()
  local health = vim.health
  local version = tostring(vim.version())
  if vim.fn.has("nvim-0.10") == 1 then
    health.ok("Neovim " .. version)
  else
    health.error("Neovim " .. version .. " is older than 0.10")
  end
  if vim.lsp.inline_completion then
    local core = require("pillion.config").get().core_inline_completion
    health.info("suggestions are shown by " .. (core and "Neovim" or "Pillion's plugin"))
  end
end

local function settings()
  local problems = require("pillion.config").problems(vim.g.pillion or {})
  for _, problem in ipairs(problems) do
    vim.health.error("vim.g.pillion: " .. problem)
  end
  if #problems == 0 then
    vim.health.ok("settings are valid")
  end
end

---@return string[]?
local function command()
  local cmd, missing = require("pillion.server").command()
  if not cmd then
    vim.health.error(missing, { "Install Pillion and put `pillion` on the PATH, or set `cmd`." })
    return nil
  end
  local done = run(cmd, { "--version" })
  if done.code == 0 then
    vim.health.ok(vim.trim(done.stdout) .. " at " .. cmd[1])
    return cmd
  end
  vim.health.error(cmd[1] .. " --version failed: " .. vim.trim(done.stderr))
end

---@param cmd string[]
local function daemon(cmd)
  local done = run(cmd, { "status", "--json" })
  if done.code ~= 0 then
    vim.health.warn("no daemon is running; the first file starts one", { vim.trim(done.stderr) })
    return
  end
  local ok, report = pcall(vim.json.decode, done.stdout, { luanil = { object = true } })
  if not ok then
    vim.health.error("pillion status --json is no JSON")
    return
  end
  local model = report.model and report.model.id or report.requested_model
  local say = report.state == "failed" and vim.health.error or vim.health.ok
  say(
    ("daemon %s (pid %s) is %s: %s %s"):format(
      report.version,
      report.pid,
      report.state,
      model,
      report.detail or ""
    )
  )
  for _, note in ipairs(report.notes or {}) do
    vim.health.info(note)
  end
  if report.exactness and not report.exactness.exact then
    vim.health.warn("replies are not exact: " .. tostring(report.exactness.reason))
  end
end

local function connection()
  local server = require("pillion.server")
  local state, trouble = server.connection()
  local say = state == "failed" and vim.health.error or vim.health.info
  say("connection: " .. state .. (trouble and ": " .. trouble or ""))
  vim.health.info(#server.attached() .. " buffers are attached")
end

local function keys()
  local config = require("pillion.config").get()
  for action, lhs in pairs(config.keys or {}) do
    for _, key in ipairs(type(lhs) == "table" and lhs or lhs and { lhs } or {}) do
      local map = vim.fn.maparg(key, "i", false, true)
      if not vim.tbl_isempty(map) and not vim.startswith(map.desc or "", "Pillion") then
        local what = map.desc or map.rhs or "a function"
        if action == "trigger" then
          vim.health.warn(("%s is mapped to %s, so it does not trigger"):format(key, what))
        else
          vim.health.info(("%s is mapped to %s while no suggestion is shown"):format(key, what))
        end
      end
    end
  end
end

function M.check()
  vim.health.start("pillion")
  neovim()
  settings()
  keys()
  local cmd = command()
  if cmd then
    daemon(cmd)
  end
  connection()
end

return M
