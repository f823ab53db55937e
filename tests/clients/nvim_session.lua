-- A client that knows nothing of Pillion but LSP 3.18, on the daemon's Unix socket; <Tab> accepts.
-- What users install is editors/nvim.
local socket = ...
local marks = vim.api.nvim_create_namespace("pillion")
local shown, pending

local function clear()
  shown = nil
  vim.api.nvim_buf_clear_namespace(0, marks, 0, -1)
end

local function show(item)
  local lines = vim.split(item.insertText, "\r?\n")
  local below = {}
  for i = 2, #lines do
    below[i - 1] = { { lines[i], "Comment" } }
  end
  vim.api.nvim_buf_set_extmark(0, marks, vim.fn.line(".") - 1, vim.fn.col(".") - 1, {
    virt_text = { { lines[1], "Comment" } },
    virt_text_pos = "inline",
    virt_lines = below,
  })
  shown = lines
end

local function ask()
  clear()
  local buffer = vim.api.nvim_get_current_buf()
  local client = vim.lsp.get_clients({ name = "pillion", bufnr = buffer })[1]
  if not client then
    return
  end
  if pending then
    client:cancel_request(pending)
  end
  local params = vim.lsp.util.make_position_params(0, client.offset_encoding)
  params.context = { triggerKind = 2 }
  local tick = vim.api.nvim_buf_get_changedtick(buffer)
  local _, id = client:request("textDocument/inlineCompletion", params, function(err, result)
    -- What was asked about a text that has changed since is not for this one.
    if
      buffer == vim.api.nvim_get_current_buf()
      and tick == vim.api.nvim_buf_get_changedtick(buffer)
      and vim.fn.mode() == "i"
    then
      pending = nil
      clear()
      if not err and result and result.items[1] then
        show(result.items[1])
      end
    end
  end, buffer)
  pending = id
end

local function accept()
  if not shown then
    return "<Tab>"
  end
  local lines, row, column = shown, vim.fn.line(".") - 1, vim.fn.col(".") - 1
  vim.schedule(function()
    clear()
    vim.api.nvim_buf_set_text(0, row, column, row, column, lines)
    local last = #lines[#lines] + (#lines == 1 and column or 0)
    vim.api.nvim_win_set_cursor(0, { row + #lines, last })
  end)
  return ""
end

local group = vim.api.nvim_create_augroup("pillion", {})
vim.api.nvim_create_autocmd("FileType", {
  group = group,
  callback = function()
    vim.lsp.start({
      name = "pillion",
      cmd = vim.lsp.rpc.connect(socket),
      root_dir = vim.fn.getcwd(),
    })
  end,
})
vim.api.nvim_create_autocmd("TextChangedI", { group = group, callback = ask })
vim.api.nvim_create_autocmd("InsertLeave", { group = group, callback = clear })
vim.keymap.set("i", "<Tab>", accept, { expr = true })
