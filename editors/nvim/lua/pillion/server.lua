--- The connection to the daemon: one `pillion lsp` a Neovim, joined to which buffers, started again
--- when it ends. The daemon finds files by the folders that it is told of.

local config = require("pillion.config")
local eligible = require("pillion.eligible")

local M = {}

local NAME = "pillion"
local FIRST_DELAY_MS, LONGEST_DELAY_MS, TRIES = 250, 30000, 8
local SETTLED_MS = 10000
--- Neovim 0.11 made methods of what were functions of a client.
local methods = vim.fn.has("nvim-0.11") == 1

---@alias pillion.Connection "off"|"starting"|"connected"|"restarting"|"failed"

---@type integer?
local client_id
--- Stands for the start that `client_id` comes from: an end that is told late is not of this one.
---@type table?
local mine
---@type pillion.Connection
local connection = "off"
---@type string? what went wrong last, one sentence
local trouble
---@type table<integer, true> buffers that are to be attached, also to the next connection
local wanted = {}
--- The changedtick at which the server got the whole of a buffer.
---@type table<integer, integer>
local opened = {}
local failures, started_at = 0, 0
local leaving = false
---@type table<string|integer, fun(value: table)>
local listeners = {}
---@type fun(connection: pillion.Connection)[]
local watchers = {}

--- Call a client's method in either version's way.
---@param client vim.lsp.Client
---@param name string
local function call(client, name, ...)
  local method = client[name]
  if methods then
    return method(client, ...)
  end
  return method(...)
end

--- Be told when the connection changes.
---@param watcher fun(connection: pillion.Connection)
function M.on_change(watcher)
  table.insert(watchers, watcher)
end

---@return pillion.Connection
---@return string? trouble
function M.connection()
  return connection, trouble
end

---@param to pillion.Connection
---@param why string?
local function become(to, why)
  connection, trouble = to, why
  for _, watcher in ipairs(watchers) do
    watcher(to)
  end
end

--- Where the command is; only an absolute path, so that nothing of the workspace is run.
---@return string[]? command
---@return string? why not
function M.command()
  local cmd = vim.deepcopy(config.get().cmd)
  local path = vim.fn.exepath(cmd[1] or "")
  if path == "" then
    return nil, ("%s is not on the PATH; install it, or set cmd"):format(cmd[1] or "cmd[1]")
  elseif not vim.startswith(vim.fs.normalize(cmd[1]), "/") and not vim.startswith(path, "/") then
    return nil, ("%s is found by a relative PATH, which a project could use"):format(path)
  end
  cmd[1] = path
  return cmd, nil
end

---@return vim.lsp.Client?
local function running()
  local client = client_id and vim.lsp.get_client_by_id(client_id)
  return client and client.initialized and not call(client, "is_stopped") and client or nil
end

--- The client that serves a buffer now.
---@param buffer integer
---@return vim.lsp.Client?
function M.client(buffer)
  local client = running()
  if client and vim.lsp.buf_is_attached(buffer, client.id) and eligible.check(buffer) then
    return client
  end
end

---@param buffer integer
---@return string? folder of the project
function M.root(buffer)
  return vim.fs.root(buffer, config.get().root_markers)
end

--- The daemon reads files of folders it was told of only.
---@param client vim.lsp.Client
---@param root string?
local function add_folder(client, root)
  if not root then
    return
  end
  local folder = { uri = vim.uri_from_fname(root), name = root }
  client.workspace_folders = client.workspace_folders or {}
  for _, known in ipairs(client.workspace_folders) do
    if known.uri == folder.uri then
      return
    end
  end
  table.insert(client.workspace_folders, folder)
  call(client, "notify", "workspace/didChangeWorkspaceFolders", {
    event = { added = { folder }, removed = {} },
  })
end

local function start_again()
  failures = vim.uv.now() - started_at > SETTLED_MS and 0 or failures + 1
  if failures > TRIES then
    become("failed", "it ended " .. failures .. " times in a row; see :Pillion log")
    return
  end
  become("restarting", trouble)
  vim.defer_fn(function()
    if connection == "restarting" then
      connection = "starting"
      for _, buffer in ipairs(vim.tbl_keys(wanted)) do
        M.attach(buffer)
      end
    end
  end, math.min(LONGEST_DELAY_MS, FIRST_DELAY_MS * 2 ^ failures))
end

---@param start table which start it was; see `mine`
---@param code integer
local function ended(start, code)
  if start ~= mine then
    return
  end
  mine, client_id = nil, nil
  require("pillion.completion").reset()
  require("pillion.job").lost()
  if leaving or connection == "off" then
    return
  end
  local why = require("pillion.status").hopeless()
  if why then
    failures = TRIES + 1
    become("failed", why)
    vim.notify("pillion: " .. why, vim.log.levels.WARN)
  else
    trouble = code ~= 0 and ("pillion lsp ended with code %d"):format(code) or nil
    start_again()
  end
end

--- Neovim would warn of every end; we start again and say so in the status.
---@param cmd string[]
---@param start table
---@return fun(dispatchers: vim.lsp.rpc.Dispatchers): vim.lsp.rpc.PublicClient
local function connector(cmd, start)
  return function(dispatchers)
    local on_exit = dispatchers.on_exit
    dispatchers.on_exit = function(code)
      on_exit(0, 0)
      vim.schedule(function()
        ended(start, code)
      end)
    end
    -- The command must not find itself in a project.
    return vim.lsp.rpc.start(cmd, dispatchers, { cwd = vim.uv.os_homedir() })
  end
end

--- Progress of our own jobs goes to them; all else to whoever shows progress.
local function on_progress(err, params, ctx, settings)
  local listener = params and listeners[params.token]
  if listener and type(params.value) == "table" then
    listener(params.value)
    if not params.value.kind then
      return
    end
  end
  return vim.lsp.handlers["$/progress"](err, params, ctx, settings)
end

---@return lsp.ClientCapabilities
local function capabilities()
  local able = vim.lsp.protocol.make_client_capabilities()
  able.textDocument.inlineCompletion = { dynamicRegistration = false }
  return able
end

--- Neovim 0.12 can show inline completions itself. Two of us would show everything twice.
---@param id integer
local function settle_with_core(id)
  local core = vim.lsp.inline_completion
  local completion = require("pillion.completion")
  if core and core.enable then
    core.enable(config.get().core_inline_completion, { client_id = id })
  end
  if core and config.get().core_inline_completion then
    completion.disable()
  else
    completion.enable()
  end
end

---@param root string?
---@param cmd string[]
---@return vim.lsp.ClientConfig
local function client_config(root, cmd)
  mine = {}
  return {
    name = NAME,
    cmd = connector(cmd, mine),
    root_dir = root,
    capabilities = capabilities(),
    init_options = { commands = { "pillion.editSelection", "pillion.explain" } },
    handlers = {
      ["$/progress"] = on_progress,
      ["pillion/didChangeStatus"] = require("pillion.status").did_change,
    },
    commands = {
      ["pillion.editSelection"] = function(command)
        require("pillion.edit").by_action(command.arguments[1])
      end,
      ["pillion.explain"] = function(command)
        require("pillion.explain").by_action(command.arguments[1])
      end,
    },
    on_attach = function(_, buffer)
      opened[buffer] = vim.api.nvim_buf_get_changedtick(buffer)
    end,
    on_init = function(client)
      settle_with_core(client.id)
      for buffer in pairs(wanted) do
        add_folder(client, M.root(buffer))
      end
      become("connected")
      require("pillion.status").watch()
    end,
  }
end

---@param buffer integer
---@return boolean
---@return string? why not
local function start(buffer)
  local cmd, missing = M.command()
  if not cmd then
    if trouble ~= missing then
      vim.notify("pillion: " .. missing, vim.log.levels.WARN)
    end
    become("failed", missing)
    return false, missing
  end
  started_at = vim.uv.now()
  become("starting", trouble)
  client_id = vim.lsp.start(client_config(M.root(buffer), cmd), {
    bufnr = buffer,
    silent = true,
    reuse_client = function()
      return false
    end,
  })
  if not client_id then
    become("failed", "pillion lsp could not be started; see :Pillion log")
  end
  return client_id ~= nil, trouble
end

--- Join a buffer to the daemon, and start `pillion lsp` where it does not run.
---@param buffer integer
---@return boolean
---@return string? why not
function M.attach(buffer)
  if not vim.api.nvim_buf_is_loaded(buffer) then
    wanted[buffer] = nil
    return false, "the buffer is gone"
  end
  local able, why = eligible.check(buffer)
  if not able then
    return false, why
  end
  wanted[buffer] = true
  if not client_id and (connection == "restarting" or failures > TRIES) then
    return false, trouble
  elseif not client_id then
    return start(buffer)
  elseif not vim.lsp.buf_is_attached(buffer, client_id) then
    vim.lsp.buf_attach_client(buffer, client_id)
    local client = running()
    if client then
      add_folder(client, M.root(buffer))
    end
  end
  return true
end

--- Leave a buffer alone from now on.
---@param buffer integer
function M.detach(buffer)
  wanted[buffer] = nil
  local client = running()
  if client and vim.lsp.buf_is_attached(buffer, client.id) then
    vim.lsp.buf_detach_client(buffer, client.id)
  end
end

--- End the connection. The daemon goes on: others may use it.
function M.stop()
  local client = client_id and vim.lsp.get_client_by_id(client_id)
  become("off")
  mine, client_id = nil, nil
  require("pillion.completion").reset()
  if client then
    call(client, "stop")
  end
end

--- A new connection for all buffers; it starts a daemon where none runs.
function M.restart()
  local buffers = vim.tbl_keys(wanted)
  M.stop()
  failures = 0
  for _, buffer in ipairs(buffers) do
    M.attach(buffer)
  end
  M.attach(vim.api.nvim_get_current_buf())
end

---@param buffer integer
---@return string as it would be written
local function whole_text(buffer)
  local ends = ({ dos = "\r\n", mac = "\r" })[vim.bo[buffer].fileformat] or "\n"
  local text = table.concat(vim.api.nvim_buf_get_lines(buffer, 0, -1, true), ends)
  return vim.bo[buffer].eol and text .. ends or text
end

--- See that the server has the buffer's text. Neovim stops following a buffer that changes while no
--- server is attached to it, and does not begin again (seen in 0.11); then all of it is sent.
---@param client vim.lsp.Client
---@param buffer integer
local function sync(client, buffer)
  local tick = vim.api.nvim_buf_get_changedtick(buffer)
  if not opened[buffer] or tick == opened[buffer] or tick == vim.lsp.util.buf_versions[buffer] then
    return
  end
  opened[buffer] = tick
  call(client, "notify", "textDocument/didChange", {
    textDocument = { uri = vim.uri_from_bufnr(buffer), version = tick },
    contentChanges = { { text = whole_text(buffer) } },
  })
end

---@param client vim.lsp.Client
---@param method string
---@param params table
---@param handler fun(err: lsp.ResponseError?, result: any)
---@param buffer integer? whose text it is about
---@return integer? id for `cancel`
function M.request(client, method, params, handler, buffer)
  if buffer then
    sync(client, buffer)
  end
  local sent, id = call(client, "request", method, params, handler, buffer)
  return sent and id or nil
end

---@param client vim.lsp.Client
---@param id integer
function M.cancel(client, id)
  if not call(client, "is_stopped") then
    call(client, "cancel_request", id)
  end
end

--- Hear what is reported under a token until `false` is given.
---@param token string
---@param listener fun(value: table)|nil
function M.listen(token, listener)
  listeners[token] = listener
end

--- Run the command that came with an accepted item.
---@param buffer integer
---@param command lsp.Command
function M.execute(buffer, command)
  local client = M.client(buffer)
  if client then
    local params = { command = command.command, arguments = command.arguments }
    M.request(client, "workspace/executeCommand", params, function() end, buffer)
  end
end

--- The client, whatever buffer it serves.
---@return vim.lsp.Client?
function M.any()
  return running()
end

---@return integer[] buffers
function M.attached()
  local client = running()
  return vim.tbl_filter(function(buffer)
    return client ~= nil and vim.lsp.buf_is_attached(buffer, client.id)
  end, vim.tbl_keys(wanted))
end

vim.api.nvim_create_autocmd({ "BufWipeout", "BufDelete" }, {
  group = vim.api.nvim_create_augroup("pillion.server", {}),
  callback = function(event)
    wanted[event.buf], opened[event.buf] = nil, nil
  end,
})
vim.api.nvim_create_autocmd("VimLeavePre", {
  group = "pillion.server",
  callback = function()
    leaving = true
  end,
})

return M
