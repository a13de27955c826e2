class Half <
#           ^ signature
  def first(one, 
#                ^ signature
  def second
    call(one, 
#             ^ arguments
    total = one +
#                ^ operator
    items.each do
#                ^ block_start
      item.
#          ^ identifier
      puts "open #{item
#                      ^ identifier
