--- From keys to ghost text: when to ask, what to show, and what accepting does.

local config = require("pillion.config")
local ghost = require("pillion.ghost")
local keys = require("pillion.keys")
local menu = require("pillion.menu")
local pace = require("pillion.pace")
local positions = require("pillion.positions")
local server = require("pillion.server")
local suggestion = require("pillion.suggestion")

local api = vim.api
local M = {}

local INVOKED, AUTOMATIC = 1, 2
local METHOD = "textDocument/inlineCompletion"

---@class pillion.Offer
---@field buffer integer
---@field items pillion.Suggestion[]
---@field index integer
---@field invoked boolean whether all alternatives were asked for

---@type pillion.Offer? what may be shown, on the screen or behind a menu
local offer
local drawn = false
---@type {client: vim.lsp.Client, id: integer}?
local pending
local generation = 0
local timer = assert(vim.uv.new_timer())
--- Where the cursor was and what the buffer was when something was last done about it.
local seen = { buffer = -1, tick = -1, row = -1, column = -1 }

---@return integer row from 0
---@return integer column in bytes
local function cursor()
  local at = api.nvim_win_get_cursor(0)
  return at[1] - 1, at[2]
end

local function note()
  local row, column = cursor()
  local buffer = api.nvim_get_current_buf()
  seen = { buffer = buffer, tick = vim.b[buffer].changedtick, row = row, column = column }
end

local function hide()
  if drawn and offer then
    ghost.clear(offer.buffer)
    keys.remove()
  end
  drawn = false
end

local function cancel()
  generation = generation + 1
  timer:stop()
  if pending then
    server.cancel(pending.client, pending.id)
    pending = nil
  end
end

--- Nothing is shown and nothing is on its way.
function M.reset()
  cancel()
  hide()
  offer = nil
end

---@return boolean
function M.visible()
  return drawn
end

---@return boolean
local function inserting()
  return api.nvim_get_mode().mode:sub(1, 1) == "i"
end

--- Keys of a macro mean what they meant when it was recorded, so there are no suggestions in them.
---@return boolean
local function in_macro()
  return vim.fn.reg_recording() ~= "" or vim.fn.reg_executing() ~= ""
end

---@return pillion.Rest?
---@return integer row
---@return integer column
local function left()
  local row, column = cursor()
  if not offer or offer.buffer ~= api.nvim_get_current_buf() then
    return nil, row, column
  end
  return suggestion.rest(offer.items[offer.index], row, column), row, column
end

--- Bring the screen in step with the buffer.
---@return boolean whether there is something to show
local function show()
  local rest, row, column = left()
  if not rest or rest.text == "" or not inserting() then
    hide()
    offer = nil
    return false
  end
  if config.get().hide_during_completion and menu.open() then
    hide()
    return true
  end
  ghost.draw(offer.buffer, row, column, rest)
  drawn = true
  keys.install(offer.buffer)
  return true
end

---@param at {buffer: integer, row: integer, column: integer}
---@param result table?
---@param client vim.lsp.Client
---@return pillion.Suggestion[]
local function read(at, result, client)
  local items = {}
  for _, item in ipairs(result and (result.items or result) or {}) do
    local ok, made = pcall(suggestion.new, item, at, client.offset_encoding)
    if ok and made then
      table.insert(items, made)
    end
  end
  return items
end

---@param items pillion.Suggestion[]
---@param step integer? which to show, counted from the one that is shown
---@param invoked boolean
local function take(items, step, invoked)
  local current = offer and step and offer.items[offer.index]
  if current then
    -- The one on the screen stays the first; what is new goes behind it.
    local others = vim.tbl_filter(function(item)
      return item.text ~= current.text
    end, items)
    items = vim.list_extend({ current }, others)
  end
  if #items == 0 then
    hide()
    offer = nil
    return
  end
  local index = current and (step % #items) + 1 or 1
  hide()
  offer = { buffer = items[1].buffer, items = items, index = index, invoked = invoked }
  show()
end

---@param kind integer why it is asked
---@param step integer? for `take`
local function ask(kind, step)
  cancel()
  local buffer = api.nvim_get_current_buf()
  local client = server.client(buffer)
  if not client or not inserting() then
    return
  end
  local row, column = cursor()
  local line = api.nvim_get_current_line()
  local at = { buffer = buffer, row = row, column = column }
  local mine, began = generation, vim.uv.hrtime()
  local character = positions.to_server(line, column, client.offset_encoding)
  local id = server.request(client, METHOD, {
    textDocument = { uri = vim.uri_from_bufnr(buffer) },
    position = { line = row, character = character },
    context = { triggerKind = kind },
  }, function(err, result)
    if mine ~= generation then
      return
    end
    pending = nil
    -- What was typed meanwhile may still lead into the answer; `show` looks.
    if err or not inserting() or api.nvim_get_current_buf() ~= buffer then
      return
    end
    if result then
      pace.measured((vim.uv.hrtime() - began) / 1e6)
    end
    note()
    take(read(at, result, client), step, kind == INVOKED)
  end, buffer)
  pending = id and { client = client, id = id } or nil
end

---@return boolean
local function wanted()
  local settings = config.get()
  if not (settings.auto_trigger and inserting()) or in_macro() then
    return false
  end
  if settings.hide_during_completion and menu.open() then
    return false
  end
  local _, column = cursor()
  local behind = api.nvim_get_current_line():sub(column + 1)
  return vim.fn.strchars(vim.trim(behind)) <= settings.max_line_suffix
end

local function ask_soon()
  cancel()
  local mine = generation
  timer:start(
    pace.debounce(config.get().debounce),
    0,
    vim.schedule_wrap(function()
      if mine == generation and wanted() then
        ask(AUTOMATIC)
      end
    end)
  )
end

--- The text changed, or a menu closed.
function M.changed()
  note()
  if in_macro() or not server.client(seen.buffer) then
    M.reset()
  elseif show() then
    -- Typing along what is shown needs no new answer, and none that is on its way.
    cancel()
  elseif wanted() then
    ask_soon()
  else
    cancel()
  end
end

--- The cursor moved; if by typing, then `changed` comes too.
function M.moved()
  local row, column = cursor()
  local buffer = api.nvim_get_current_buf()
  local typed = seen.buffer ~= buffer or seen.tick ~= vim.b[buffer].changedtick
  if not typed and (seen.row ~= row or seen.column ~= column) then
    M.reset()
    note()
  end
end

--- A popup menu opened or its entry changed.
function M.menu_changed()
  if config.get().hide_during_completion then
    cancel()
    hide()
  end
end

--- Show the next or the previous alternative; ask for more where there is just one.
---@param step 1|-1
function M.cycle(step)
  if not offer then
    return
  end
  if #offer.items > 1 then
    offer.index = (offer.index - 1 + step) % #offer.items + 1
    show()
  elseif not offer.invoked then
    ask(INVOKED, step)
  end
end

function M.dismiss()
  M.reset()
  note()
end

--- Ask now, whatever the settings say about asking unasked.
function M.trigger()
  server.attach(api.nvim_get_current_buf())
  hide()
  offer = nil
  ask(INVOKED)
end

---@param rest pillion.Rest
---@param part "all"|"line"|"word"
---@return string
local function piece_of(rest, part)
  if part == "all" then
    return rest.text
  end
  return suggestion[part](rest.text)
end

--- Put a part of what is shown into the buffer; the cursor goes behind it.
---@param part "all"|"line"|"word"
---@return boolean whether there was something to accept
function M.accept(part)
  local rest, row, column = left()
  if not (drawn and offer and rest) then
    return false
  end
  local buffer, item = offer.buffer, offer.items[offer.index]
  local piece = piece_of(rest, part)
  local lines = vim.split(piece, "\n", { plain = true })
  local till = column + suggestion.replaces(rest, piece)
  api.nvim_buf_set_text(buffer, row, column, row, till, lines)
  local last = #lines[#lines] + (#lines == 1 and column or 0)
  api.nvim_win_set_cursor(0, { row + #lines, last })
  if piece ~= rest.text then
    note()
    show()
    return true
  end
  M.reset()
  if item.command then
    server.execute(buffer, item.command)
  end
  return true
end

local group = api.nvim_create_augroup("pillion.completion", {})

---@param events string|string[]
---@param callback fun(event: table)
local function on(events, callback)
  api.nvim_create_autocmd(events, { group = group, callback = callback })
end

--- Look again when what goes on now is over.
local function changed_soon()
  vim.schedule(function()
    if inserting() then
      M.changed()
    end
  end)
end

--- Start to listen.
function M.enable()
  api.nvim_clear_autocmds({ group = group })
  on({ "TextChangedI", "TextChangedP" }, M.changed)
  on("CursorMovedI", M.moved)
  on("CompleteChanged", M.menu_changed)
  on("CompleteDone", changed_soon)
  on("InsertEnter", function(event)
    menu.follow(M.menu_changed, changed_soon)
    server.attach(event.buf)
    changed_soon()
  end)
  on({ "InsertLeave", "BufLeave", "WinLeave" }, M.reset)
  on("User", function(event)
    if event.match == "BlinkCmpMenuOpen" then
      M.menu_changed()
    elseif event.match == "BlinkCmpMenuClose" then
      changed_soon()
    end
  end)
end

function M.disable()
  api.nvim_clear_autocmds({ group = group })
  M.reset()
end

return M
