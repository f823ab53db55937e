--- The preview of a change: every hunk can be taken or left before anything happens to a buffer.

local hunks = require("pillion.hunks")
local job = require("pillion.job")
local window = require("pillion.window")

---@class pillion.Change of one buffer
---@field buffer integer
---@field tick integer the buffer's changedtick that the hunks are for
---@field name string
---@field hunks pillion.Hunk[]
---@field encoding string
---@field ours boolean? whether the buffer was loaded for the preview

local M = {}

local CONTEXT = 2
local FOOTER = "a take  r leave  ]c [c next  <CR> apply  q nothing"

---@param buffer integer
---@param edits lsp.TextEdit[]
---@param encoding string
---@return pillion.Change
function M.change(buffer, edits, encoding)
  local lines = vim.api.nvim_buf_get_lines(buffer, 0, -1, false)
  return {
    buffer = buffer,
    tick = vim.api.nvim_buf_get_changedtick(buffer),
    name = vim.fn.fnamemodify(vim.api.nvim_buf_get_name(buffer), ":~:."),
    hunks = hunks.of(lines, edits, encoding),
    encoding = encoding,
  }
end

--- Changes of a WorkspaceEdit. Files that are not open are loaded, and go again with the preview
--- unless a change of theirs is applied.
---@param edit lsp.WorkspaceEdit
---@param encoding string
---@return pillion.Change[]
function M.changes(edit, encoding)
  local found = {}
  for _, document in ipairs(edit.documentChanges or {}) do
    local buffer = vim.uri_to_bufnr(document.textDocument.uri)
    local ours = not vim.api.nvim_buf_is_loaded(buffer)
    if ours then
      local shortmess = vim.o.shortmess
      vim.opt.shortmess:append("A")
      pcall(vim.fn.bufload, buffer)
      vim.o.shortmess = shortmess
    end
    local change = M.change(buffer, document.edits, encoding)
    change.ours = ours
    if #change.hunks > 0 then
      table.insert(found, change)
    end
  end
  return found
end

---@class pillion.Review
---@field changes pillion.Change[]
---@field rows table<integer, pillion.Hunk> which hunk a row of the preview belongs to
---@field heads integer[] rows of the hunks' first lines

---@param review pillion.Review
---@return string[]
local function render(review)
  local shown, rows, heads = {}, {}, {}
  local function add(line, hunk)
    table.insert(shown, (line:gsub("\n", "\\n")))
    rows[#shown] = hunk
  end
  for _, change in ipairs(review.changes) do
    local lines = vim.api.nvim_buf_get_lines(change.buffer, 0, -1, false)
    local moved = 0
    add("--- " .. change.name, nil)
    for _, hunk in ipairs(change.hunks) do
      local first, behind = hunk.first, hunk.first + #hunk.old
      local box = hunk.chosen and "[x]" or "[ ]"
      local at = first + 1
      add(("@@ -%d,%d +%d,%d @@ %s"):format(at, #hunk.old, at + moved, #hunk.new, box), hunk)
      moved = moved + #hunk.new - #hunk.old
      table.insert(heads, #shown)
      for row = math.max(0, first - CONTEXT), first - 1 do
        add(" " .. lines[row + 1], hunk)
      end
      for _, line in ipairs(hunk.old) do
        add("-" .. line, hunk)
      end
      for _, line in ipairs(hunk.new) do
        add("+" .. line, hunk)
      end
      for row = behind, math.min(#lines, behind + CONTEXT) - 1 do
        add(" " .. lines[row + 1], hunk)
      end
    end
  end
  review.rows, review.heads = rows, heads
  return shown
end

--- Apply the hunks that were chosen; each buffer's are one step of undo.
---@param changes pillion.Change[]
---@return integer hunks that were applied
---@return string[] names of buffers that had changed meanwhile
function M.apply(changes)
  local applied, stale = 0, {}
  for _, change in ipairs(changes) do
    local edits, count = {}, 0
    for _, hunk in ipairs(change.hunks) do
      if hunk.chosen then
        vim.list_extend(edits, hunk.edits)
        count = count + 1
      end
    end
    local valid = vim.api.nvim_buf_is_loaded(change.buffer)
    if
      count > 0 and not (valid and vim.api.nvim_buf_get_changedtick(change.buffer) == change.tick)
    then
      table.insert(stale, change.name)
    elseif count > 0 then
      vim.lsp.util.apply_text_edits(edits, change.buffer, change.encoding)
      vim.bo[change.buffer].buflisted = true
      applied = applied + count
    end
  end
  return applied, stale
end

---@param changes pillion.Change[]
local function finish(changes)
  local applied, stale = M.apply(changes)
  if #stale > 0 then
    local names = table.concat(stale, ", ")
    job.say(names .. " was changed meanwhile and left as it is", vim.log.levels.WARN)
  end
  local files = #changes - #stale
  if files > 0 then
    local where = files > 1 and (" in %d files; :wall writes them"):format(files) or ""
    job.say(("%d hunk%s applied%s"):format(applied, applied == 1 and "" or "s", where))
  end
end

--- Let go of buffers that nobody has a use for.
---@param changes pillion.Change[]
local function release(changes)
  for _, change in ipairs(changes) do
    local buffer = change.buffer
    if change.ours and vim.api.nvim_buf_is_valid(buffer) and not vim.bo[buffer].buflisted then
      pcall(vim.api.nvim_buf_delete, buffer, {})
    end
  end
end

---@param changes pillion.Change[]
---@param title string
function M.show(changes, title)
  local review = { changes = changes, rows = {}, heads = {} }
  local view = window.open(render(review), {
    title = title,
    footer = FOOTER,
    filetype = "diff",
    closed = function()
      release(changes)
    end,
  })

  local function jump(step)
    local row = vim.api.nvim_win_get_cursor(view.window)[1]
    local target ---@type integer?
    for _, head in ipairs(review.heads) do
      if (step > 0 and head > row and not target) or (step < 0 and head < row) then
        target = head
      end
    end
    if target then
      vim.api.nvim_win_set_cursor(view.window, { target, 0 })
    end
  end

  local function choose(chosen)
    local row = vim.api.nvim_win_get_cursor(view.window)[1]
    local hunk = review.rows[row]
    if hunk then
      hunk.chosen = chosen
      window.fill(view.buffer, render(review))
      vim.api.nvim_win_set_cursor(view.window, { row, 0 })
      jump(1)
    end
  end

  local function map(key, action)
    vim.keymap.set("n", key, action, { buffer = view.buffer, nowait = true })
  end
  map("a", function()
    choose(true)
  end)
  map("r", function()
    choose(false)
  end)
  map("]c", function()
    jump(1)
  end)
  map("[c", function()
    jump(-1)
  end)
  map("<CR>", function()
    vim.cmd.close()
    finish(changes)
  end)
  if review.heads[1] then
    vim.api.nvim_win_set_cursor(view.window, { review.heads[1], 0 })
  end
end

return M
